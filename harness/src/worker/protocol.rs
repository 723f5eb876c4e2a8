//! The worker protocol, version 9: all that is needed to write a worker in another language.
//!
//! # Channel
//!
//! The parent starts a worker with two open pipes. The environment names their
//! file descriptors: requests are read from `CONFORM_REQUEST_FD` (3), replies
//! are written to `CONFORM_REPLY_FD` (4). Set both close-on-exec before loading
//! a driver, so that a process it starts cannot keep them open. Standard input
//! is empty; standard output and error are free for logs: the parent keeps the
//! last 16 KiB and shows them when the worker dies.
//!
//! A message is one JSON object on one line, ended by `\n`, with a `type`. A
//! request has at most 16 MiB, a reply at most 1 MiB. Unknown fields are errors
//! on both sides: a change of any message is a new protocol version.
//!
//! # Conversation
//!
//! The worker speaks first, and before it loads anything:
//!
//! ```json
//! {"type":"hello","protocol":9,"program":"conform 0.1.0"}
//! ```
//!
//! (`type` and `protocol` stay the same in every version.) Then each request
//! gets exactly one reply, in order, and nothing is written unasked:
//!
//! | request | replies |
//! | --- | --- |
//! | `probe` | `probed` with the devices found, or why there are none |
//! | `open` with a device's key, and perhaps a mutant's name | `opened` with the device's description, or `refused` |
//! | `run` with a plan | `ran` with the same `seq` and case |
//!
//! A mutant is a fault that the device is to have, one of `conform mutants`: a worker that does not know how to make it
//! refuses. The description is that of the device without it.
//!
//! Any request that makes no sense (no JSON, an offset outside a file, `run`
//! without a device) is answered by `rejected`. When the request pipe ends, the
//! parent is gone: the worker ends at once, even in the middle of a driver call.
//!
//! ```json
//! {"type":"probe"}
//! {"type":"probed","probe":{"missing":"no OpenCL loader (libOpenCL.so.1) on this machine"}}
//! {"type":"open","device":"fake-0"}
//! {"type":"opened","info":{"key":"fake-0","backend":"fake","name":"…","driver":"…","identity":{"driver":"fake","index":0,"pci":"0000:3b:00.0"},"properties":{},"capabilities":{"deterministic":true}}}
//! {"type":"run","seq":7,"plan":{"case":"…","tensors":[…],"steps":[…]},"layout":{…},"inputs":"/dev/shm/…","results":"/dev/shm/…","poisons":[2143289344,4290772992,2143289344],"one_by_one":2}
//! {"type":"ran","seq":7,"case":"…","outcome":{"verdict":"done"},"times":{"load":90,"upload":12,"compute":40,"read":9},"memory":{"free":…,"total":…},"observed":{"sorts":3,"guards":{"looked_at":9,"damaged":[]}}}
//! ```
//!
//! A device's `identity` says who lists it (`driver`, the same for all devices
//! of one list and for no others) and at which place (`index`); and where the
//! driver tells them its `pci` bus id, `uuid`, `luid`, `kind` and `memory`, in
//! the driver's own spelling: see [`Claims`](crate::identity::Claims). By these
//! a GPU is known that several workers reach.
//!
//! # What `run` means
//!
//! [`Plan`] describes tensors and steps, [`Layout`] where each tensor's bytes
//! lie in the two files. Map `inputs` read-only and `results` writable; both
//! exist for the length of the request only.
//!
//! 1. Decode each tensor that has `layout.decoded`: an input of a type whose
//!    numbers the parent can't tell. Take its bytes from `inputs`, where
//!    `layout.source` says, and write what they mean to `results`, as
//!    little-endian f32: the values of its view, row after row (`shape[0]` of
//!    them a row, rows in the order of dimensions 1, 2 and 3). This comes first,
//!    so that no kernel that is to be judged by these numbers has run yet. A
//!    worker that has no decoder of the type answers `unsupported`.
//! 2. Allocate every tensor (`parent`, the whole allocation), but for those whose
//!    `role` is `{"view":{"of":3}}`: they look into the allocation of that tensor.
//!    If a step is not supported answer `unsupported`; a worker that accepts a
//!    plan must be able to run it.
//! 3. Write every tensor that has `layout.source`: its allocation lies there in
//!    `inputs`.
//! 4. For each run `r`, of as many as there are `poisons`: fill every output's
//!    allocation, and scratch memory if possible, with the little-endian 32-bit
//!    word `poisons[r]`; run the steps, operations that follow each other in one
//!    go, or each by itself in the run that `one_by_one` names; copy each output's allocation to `layout.results[r]` in `results`.
//!    Steps that move bytes name the plan's `buffers`, runs of bytes in the
//!    worker's own memory. One that is given starts as the bytes at
//!    `layout.given` in `inputs`; a `fetch` fills any other with the run's
//!    poison, then with what it reads, and leaves it at `layout.left[r]` in
//!    `results`, from where a later `upload` has it. An `upload` goes through a
//!    copy that is overwritten and freed as soon as the device calls it done.
//!    A `copy` is not waited for.
//! 5. If the device lets inputs be read back, copy each from the device's own
//!    memory to `layout.readback`.
//! 6. Free everything, and only then answer. After the answer the worker must
//!    not touch `results` again. The answer's `memory` is what the driver says of
//!    the device's memory then, in bytes, whoever uses it; null where it doesn't
//!    tell. `sorts` says how often the device has sorted slots by expert, in all
//!    runs, and `guards` which guard bytes around its memory were written to;
//!    null where it doesn't count, or has none. A device that watches every access
//!    of its kernels adds `complaints`, how many and the first. A plan with `fresh_routing` asks it to do
//!    so for each step that needs them sorted; else it may use them again.
//!
//! A device error in any of this is `failed` with the stage and one line of
//! text that names the call and the driver's answer. The worker does not judge
//! and does not repeat: the parent reads the bytes.

use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;

use conform_cases::judge::{Complaints, Guards};
use conform_cases::plan::{Layout, Plan};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::{DeviceInfo, DeviceMemory, Probe};

/// The version spoken here.
pub const PROTOCOL: u32 = 9;

/// Names, in the worker's environment, the file descriptor it reads requests from.
pub const REQUEST_FD: &str = "CONFORM_REQUEST_FD";

/// Names, in the worker's environment, the file descriptor it writes replies to.
pub const REPLY_FD: &str = "CONFORM_REPLY_FD";

/// Longest request, in bytes.
pub const MAX_REQUEST: usize = 16 << 20;

/// Longest reply, in bytes: a reply carries no data, so a longer one is no reply.
pub const MAX_REPLY: usize = 1 << 20;

/// What the parent asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Which devices are there?
    Probe {},
    /// Open a device; all later runs are on it.
    Open {
        /// Its key, as probing gave it.
        device: String,
        /// The mutant whose fault it is to have.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        mutant: Option<String>,
    },
    /// Execute a plan.
    Run(Box<Run>),
}

/// The request to execute a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Number of this request; the reply repeats it.
    pub seq: u64,
    /// What to execute.
    pub plan: Plan,
    /// Where bytes lie in the two files.
    pub layout: Layout,
    /// The file of inputs, to be mapped read-only.
    pub inputs: PathBuf,
    /// The file for results.
    pub results: PathBuf,
    /// One word per run: what outputs and scratch hold before it.
    pub poisons: Vec<u32>,
    /// The run in which each operation is a piece of work of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_by_one: Option<usize>,
}

/// What a worker answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// First line of every worker.
    Hello {
        /// Version it speaks.
        protocol: u32,
        /// Name and version of the program, for reports.
        program: String,
    },
    /// Answer to [`Request::Probe`].
    Probed {
        /// What was found.
        probe: Probe,
    },
    /// Answer to [`Request::Open`]: it is open.
    Opened {
        /// What it is, and what it can be asked.
        info: DeviceInfo,
    },
    /// Answer to [`Request::Open`]: it cannot be opened.
    Refused {
        /// One line.
        why: String,
    },
    /// Answer to [`Request::Run`].
    Ran {
        /// The request's number.
        seq: u64,
        /// The plan's case.
        case: String,
        /// How it went.
        outcome: Outcome,
        /// How long it took.
        times: Times,
        /// The memory of the device after the plan was freed, where its driver tells.
        memory: Option<DeviceMemory>,
        /// What else the device has seen.
        observed: Observed,
    },
    /// The request makes no sense; nothing was done.
    Rejected {
        /// One line.
        why: String,
    },
}

/// What a device has seen of itself in all runs of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// How often it has sorted slots by expert, where it counts.
    pub sorts: Option<u64>,
    /// What became of guard bytes around its memory, where it has some.
    pub guards: Option<Guards>,
    /// What it complained of, if it watches what its kernels do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complaints: Option<Complaints>,
}

/// How a run went, as far as a worker can know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// Executed; the bytes are there to be judged.
    Done {},
    /// The device says that it does not do this.
    Unsupported {
        /// The limit, and the number that exceeds it.
        why: String,
    },
    /// The device reported an error.
    Failed {
        /// Where.
        stage: Stage,
        /// The driver's words.
        why: String,
    },
}

/// The parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Decoding weights, allocating tensors, building kernels.
    Load,
    /// Uploading inputs or poison.
    Write,
    /// Executing steps.
    Run,
    /// Downloading outputs or inputs.
    Read,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Stage::Load => "load",
            Stage::Write => "write",
            Stage::Run => "run",
            Stage::Read => "read",
        })
    }
}

/// Microseconds spent in each part, summed over runs. Poisoning counts as upload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// Decoding weights, allocating tensors, building kernels.
    pub load: u64,
    /// Writing inputs and poison.
    pub upload: u64,
    /// Executing steps.
    pub compute: u64,
    /// Reading outputs and inputs.
    pub read: u64,
}

/// A line as it arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A whole line, without its end.
    Whole(Vec<u8>),
    /// Longer than allowed; it has been skipped.
    TooLong,
}

/// Reads one line of at most `max` bytes; `None` at the end, where a torn last line is dropped.
pub fn read_line(from: &mut impl BufRead, max: usize) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    from.by_ref().take(max as u64 + 1).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Some(Line::Whole(line)));
    }
    if line.len() <= max {
        return Ok(None);
    }
    from.skip_until(b'\n')?;
    Ok(Some(Line::TooLong))
}

/// A message as one line, or why it cannot be sent.
pub fn encode(message: &impl Serialize, max: usize) -> Result<Vec<u8>, String> {
    let mut line = serde_json::to_vec(message).map_err(|e| format!("message cannot be written as JSON: {e}"))?;
    if line.len() > max {
        return Err(format!("message has {} bytes, the protocol allows {max}", line.len()));
    }
    line.push(b'\n');
    Ok(line)
}

/// Reads a message, or says why it is none: one short line that quotes it.
pub fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|e| format!("{e} in {}", quote(line)))
}

/// Writes a message and makes sure that it leaves.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize, max: usize) -> io::Result<()> {
    let line = encode(message, max).map_err(io::Error::other)?;
    to.write_all(&line)?;
    to.flush()
}

/// Reads the first line of a worker. Only `type` and `protocol` are looked at before the version is known to be ours.
pub fn decode_hello(line: &[u8]) -> Result<String, String> {
    #[derive(Deserialize)]
    struct AnyHello {
        r#type: String,
        protocol: u64,
    }
    let hello: AnyHello = serde_json::from_slice(line)
        .map_err(|_| format!("first line is no hello but {}: is this a worker?", quote(line)))?;
    if hello.r#type != "hello" {
        return Err(format!("first line is no hello but {}: is this a worker?", quote(line)));
    }
    if hello.protocol != u64::from(PROTOCOL) {
        return Err(format!(
            "worker speaks protocol {}, this conform speaks {PROTOCOL}: use a worker made for this version",
            hello.protocol
        ));
    }
    match decode(line)? {
        Reply::Hello { program, .. } => Ok(program),
        other => Err(format!("first line is no hello but {other:?}")),
    }
}

/// The start of a line, fit for a message on a terminal.
fn quote(line: &[u8]) -> String {
    const SHOWN: usize = 120;
    let text = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
    let more = if line.len() > SHOWN { format!(" … ({} bytes)", line.len()) } else { String::new() };
    format!("'{}'{more}", text.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_torn_ends_dropped() {
        let mut input = &b"abc\nabcd\n\nend"[..];
        let mut next = || read_line(&mut input, 3).unwrap();
        assert_eq!(next(), Some(Line::Whole(b"abc".to_vec())));
        assert_eq!(next(), Some(Line::TooLong));
        assert_eq!(next(), Some(Line::Whole(vec![])));
        assert_eq!(next(), None);
    }

    #[test]
    fn messages_have_the_documented_text() {
        let text = |m: &Reply| String::from_utf8(encode(m, MAX_REPLY).unwrap()).unwrap();
        let hello = Reply::Hello { protocol: 2, program: "p".into() };
        assert_eq!(text(&hello), "{\"type\":\"hello\",\"protocol\":2,\"program\":\"p\"}\n");
        let memory = Some(DeviceMemory { free: 1, total: 2 });
        let ran = Reply::Ran {
            seq: 7,
            case: "c".into(),
            outcome: Outcome::Done {},
            times: Times::default(),
            memory,
            observed: Observed { sorts: Some(3), ..Observed::default() },
        };
        assert_eq!(
            text(&ran),
            "{\"type\":\"ran\",\"seq\":7,\"case\":\"c\",\"outcome\":{\"verdict\":\"done\"},\
             \"times\":{\"load\":0,\"upload\":0,\"compute\":0,\"read\":0},\"memory\":{\"free\":1,\"total\":2},\
             \"observed\":{\"sorts\":3,\"guards\":null}}\n"
        );
        assert_eq!(decode::<Request>(br#"{"type":"probe"}"#), Ok(Request::Probe {}));
        let open = |mutant| Request::Open { device: "d".into(), mutant };
        assert_eq!(encode(&open(None), MAX_REQUEST).unwrap(), b"{\"type\":\"open\",\"device\":\"d\"}\n");
        let with = br#"{"type":"open","device":"d","mutant":"m"}"#;
        assert_eq!(decode::<Request>(with), Ok(open(Some("m".into()))));
        let missing = br#"{"type":"probed","probe":{"missing":"why"}}"#;
        assert_eq!(decode::<Reply>(missing), Ok(Reply::Probed { probe: Probe::Missing("why".into()) }));
    }

    #[test]
    fn requests_round_trip_and_refuse_unknown_fields() {
        let plan = Plan { case: "c".into(), tensors: vec![], steps: vec![], ..Plan::default() };
        let layout = Layout::new(&plan, 2);
        let (inputs, results) = ("/i".into(), "/r".into());
        let run = Request::Run(Box::new(Run {
            seq: 1,
            plan,
            layout,
            inputs,
            results,
            poisons: vec![1, 2],
            one_by_one: Some(1),
        }));
        let line = encode(&run, MAX_REQUEST).unwrap();
        assert_eq!(decode::<Request>(&line[..line.len() - 1]), Ok(run));
        assert!(decode::<Request>(br#"{"type":"probe","more":1}"#).is_err());
        assert!(
            decode::<Request>(&String::from_utf8(line).unwrap().replace("\"seq\"", "\"x\":0,\"seq\"").into_bytes())
                .is_err()
        );
    }

    #[test]
    fn another_version_is_named() {
        let why = decode_hello(br#"{"type":"hello","protocol":1,"old":[]}"#).unwrap_err();
        assert!(why.contains("speaks protocol 1"), "{why}");
        assert!(decode_hello(b"Loading driver...").unwrap_err().contains("is this a worker?"));
        assert_eq!(decode_hello(br#"{"type":"hello","protocol":9,"program":"p"}"#), Ok("p".into()));
    }
}
