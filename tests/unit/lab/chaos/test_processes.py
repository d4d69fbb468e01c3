"""Invocations run one at a time, hand over while they wait, and die where they are told to."""

from spotkeeper_lab.chaos.stand_ins.processes import Process


def test_processes_hand_over_where_they_pause() -> None:
    steps: list[str] = []

    def work() -> None:
        steps.append("began")
        process.pause()
        steps.append("went on")

    process = Process(work)
    process.resume()
    steps.append("meanwhile")
    assert not process.done
    process.resume()
    assert steps == ["began", "meanwhile", "went on"]
    assert process.done


def test_a_killed_process_does_nothing_more() -> None:
    steps: list[str] = []

    def work() -> None:
        try:
            process.pause()
        except Exception:  # noqa: BLE001 - the point of it: no handler of errors sees the end
            steps.append("caught")
        steps.append("went on")

    process = Process(work)
    process.resume()
    process.kill()
    process.resume()
    assert process.done
    assert steps == []
