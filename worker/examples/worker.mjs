// A worker in Node.js, by the protocol of docs/workers.md. Node has no flock, so its shell takes it:
// sh -c 'exec 9> /run/spotkeeper/workers/web-0; flock 9; exec node worker.mjs'
import fs from "node:fs";
import net from "node:net";

const run = process.env.SPOTKEEPER_RUN_DIR ?? "/run/spotkeeper";
let begun = 0;
const tell = (busy) =>
  fs.writeSync(9, `ready=1 busy=${String(busy).padStart(5, "0")} begun=${String(begun).padStart(10, "0")}\n`, 0);
const mayTake = () => {
  try {
    return JSON.parse(fs.readFileSync(`${run}/notice.json`)).state === "serving";
  } catch {
    return false; // There is no notice yet.
  }
};

// The first batch of the list is sent until the agent has answered, also by an agent that was started
// again: under the same number it counts once.
const session = `node-${process.pid}-${Date.now()}`;
const waiting = [];
let agent, stopping = false;
const sendFirst = () => waiting.length && agent.writable && agent.write(JSON.stringify(waiting[0]) + "\n");
const send = (batch, log) => waiting.push({ logs: [log], session, batch }) === 1 && sendFirst();
const endIfSent = () => stopping && !waiting.length && agent.destroy();
function connect() {
  let answers = "";
  agent = net.connect(`${run}/agent.sock`, sendFirst);
  agent.on("data", (data) => {
    answers += data;
    if (!answers.endsWith("\n")) return;
    answers = "";
    waiting.shift();
    sendFirst();
    endIfSent();
  });
  agent.on("error", () => {}); // The agent is away: "close" follows.
  agent.on("close", () => (stopping && !waiting.length) || setTimeout(connect, 200));
}
connect();

tell(0);
const timer = setInterval(() => {
  if (!mayTake()) return;
  const now = () => new Date().toISOString();
  const enqueued_at = now();
  begun += 1;
  tell(1);
  const started_at = now();
  // Here the worker serves its request.
  tell(0);
  send(begun, { request_id: `r-${begun}`, worker_id: "web-0", enqueued_at, started_at, finished_at: now(), status: "ok" });
}, 50);
process.on("SIGTERM", () => {
  clearInterval(timer);
  stopping = true;
  endIfSent();
  setTimeout(() => process.exit(1), 5000).unref();
});
