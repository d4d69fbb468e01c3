// A worker in Node.js, by the protocol of docs/workers.md. Node has no flock, so its shell takes it:
// sh -c 'exec 9> /run/spotkeeper/workers/web-0; flock 9; exec node worker.mjs'
import fs from "node:fs";
import net from "node:net";

const run = process.env.SPOTKEEPER_RUN_DIR ?? "/run/spotkeeper";
let begun = 0;
const tell = (busy) =>
  fs.writeSync(9, `ready=1 busy=${String(busy).padStart(5, "0")} begun=${String(begun).padStart(10, "0")}\n`, 0);
const mayTake = () => JSON.parse(fs.readFileSync(`${run}/notice.json`)).state === "serving";

const agent = net.connect(`${run}/agent.sock`);
const session = `node-${process.pid}-${Date.now()}`;
const send = (batch, log) => agent.write(JSON.stringify({ logs: [log], session, batch }) + "\n");

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
process.on("SIGTERM", () => { clearInterval(timer); agent.end(); });
