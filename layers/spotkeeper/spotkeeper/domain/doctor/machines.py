"""How instances start: market options, metadata, the workers' role, encrypted disks."""

from collections.abc import Iterator

from spotkeeper.domain.doctor.facts import AccountFacts, GroupFacts, Machine, StackFacts, Unseen
from spotkeeper.domain.doctor.finding import Finding, Severity

# Instance metadata serves a tag under its key as a path: EC2 refuses to launch with these in a key
# while tags are in the metadata (EC2 user guide, "Use instance tags in metadata").
_NOT_IN_A_PATH = (" ", "/")
_NOT_A_KEY = frozenset({".", "..", "_index"})


def check_machine(
    group: GroupFacts, machine: Machine, account: AccountFacts, stack: StackFacts | None
) -> Iterator[Finding]:
    """Check a group's launch template."""
    if machine.market_options:
        yield _finding(
            "market-options",
            Severity.ERROR,
            group,
            "the launch template has market options: a mixed instances policy refuses them",
            "remove InstanceMarketOptions; the group says what is spot",
        )
    yield from _check_metadata(group, machine)
    yield from _check_keys(group, machine, account)
    if stack is not None:
        yield from _check_profile(group, machine, stack)


def _check_metadata(group: GroupFacts, machine: Machine) -> Iterator[Finding]:
    wrong = [key for key in (*group.tag_keys, *machine.tag_keys) if _is_no_path(key)]
    named = ", ".join(repr(key) for key in dict.fromkeys(wrong))
    if wrong and machine.tags_in_metadata:
        yield _finding(
            "tag-keys",
            Severity.ERROR,
            group,
            f"{named}: metadata cannot hold it, so launches fail",
            "rename the tags of group and launch template: no spaces, no slashes; or disable "
            "InstanceMetadataTags, at its price (docs/workers.md, Traps)",
        )
    elif wrong:
        yield _finding(
            "tags-not-in-metadata",
            Severity.WARNING,
            group,
            f"InstanceMetadataTags is off, as {named} makes it be: a detached instance stops at "
            "once instead of serving for the last of its two minutes",
            "rename the tags: no spaces, no slashes; then enable InstanceMetadataTags",
        )
    elif not machine.tags_in_metadata:
        yield _finding(
            "tags-not-in-metadata",
            Severity.ERROR,
            group,
            "InstanceMetadataTags is not enabled: workers cannot see that they are to drain",
            "MetadataOptions: InstanceMetadataTags enabled",
        )
    if not machine.tokens_required:
        yield _finding(
            "metadata-tokens",
            Severity.WARNING,
            group,
            "HttpTokens is optional: whoever makes a worker fetch a URL reads its credentials",
            "MetadataOptions: HttpTokens required",
        )
    if machine.hop_limit < 2:  # noqa: PLR2004 - one hop more than the instance itself
        yield _finding(
            "metadata-hop-limit",
            Severity.WARNING,
            group,
            f"HttpPutResponseHopLimit is {machine.hop_limit}: workers in containers see no warning "
            "unless spotkeeper-agent runs on the host",
            "run the agent on the host (docs/workers.md), or HttpPutResponseHopLimit 2",
        )


def _check_keys(group: GroupFacts, machine: Machine, account: AccountFacts) -> Iterator[Finding]:
    if isinstance(account.key_grants, Unseen):
        return
    for key in machine.keys:
        if key not in account.key_grants:
            yield _finding(
                "key-without-grant",
                Severity.ERROR,
                group,
                f"disks are encrypted with {key}, which Auto Scaling may not use: launches fail",
                "grant AWSServiceRoleForAutoScaling the key (aws kms create-grant)",
            )


def _check_profile(group: GroupFacts, machine: Machine, stack: StackFacts) -> Iterator[Finding]:
    policies = machine.profile_policies
    if isinstance(policies, Unseen):
        return
    if policies is None:
        yield _finding(
            "no-instance-profile",
            Severity.ERROR,
            group,
            "instances have no role: their workers cannot send search logs",
            f"an instance profile whose role has {stack.sends_search_logs}",
        )
    elif stack.sends_search_logs not in policies:
        yield _finding(
            "role-cannot-send",
            Severity.WARNING,
            group,
            "the workers' role does not have the stack's policy for search logs",
            f"attach {stack.sends_search_logs}, unless another of its policies allows the same",
        )


def _is_no_path(key: str) -> bool:
    return key in _NOT_A_KEY or any(character in key for character in _NOT_IN_A_PATH)


def _finding(id: str, severity: Severity, group: GroupFacts, evidence: str, fix: str) -> Finding:
    return Finding(id=id, severity=severity, about=group.name, evidence=evidence, fix=fix)
