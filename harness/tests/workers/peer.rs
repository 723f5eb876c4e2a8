//! The protocol from outside, as a parent written by someone else would speak it.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use conform_harness::worker::protocol::{REPLY_FD, REQUEST_FD};

use crate::CONFORM;
use crate::case::{Case, POISONS};

/// A worker, and the other end of its pipes.
struct Peer {
    child: Child,
    requests: PipeWriter,
    replies: BufReader<PipeReader>,
}

impl Peer {
    fn start(rules: &str) -> Self {
        let (child_requests, requests) = std::io::pipe().unwrap();
        let (replies, child_replies) = std::io::pipe().unwrap();
        let mappings = vec![
            FdMapping { parent_fd: child_requests.into(), child_fd: 11 },
            FdMapping { parent_fd: child_replies.into(), child_fd: 12 },
        ];
        let mut command = Command::new(CONFORM);
        command.args(["worker", "fake"]).env("CONFORM_FAKE", rules).env(REQUEST_FD, "11").env(REPLY_FD, "12");
        command.stdin(Stdio::null()).fd_mappings(mappings).unwrap();
        let mut peer = Peer { child: command.spawn().unwrap(), requests, replies: BufReader::new(replies) };
        assert!(peer.hear().starts_with(r#"{"type":"hello","protocol":9,"#));
        peer
    }

    fn say(&mut self, line: &str) {
        writeln!(self.requests, "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        line
    }

    fn open(&mut self) {
        self.say(r#"{"type":"open","device":"fake-0"}"#);
        assert!(self.hear().contains("opened"));
    }
}

fn run_request(case: &Case) -> String {
    serde_json::json!({
        "type": "run", "seq": 1, "plan": case.plan, "layout": case.layout,
        "inputs": case.inputs.path(), "results": case.results.path(), "poisons": POISONS,
    })
    .to_string()
}

#[test]
fn a_request_that_makes_no_sense_is_answered_and_survived() {
    let mut peer = Peer::start("");
    peer.say("{\"type\":\"dance\"}");
    assert!(peer.hear().contains("rejected"));
    peer.say(&format!("\"{}\"", "x".repeat(17 << 20)));
    assert!(peer.hear().contains("longer than"));
    let mut case = Case::new("a", 1);
    peer.say(&run_request(&case));
    assert!(peer.hear().contains("before a device was opened"));
    peer.open();
    peer.say(&run_request(&case));
    assert!(peer.hear().contains("done"));
    case.layout.source[0] = Some(usize::MAX);
    peer.say(&run_request(&case));
    assert!(peer.hear().contains("do not fit"));
}

#[test]
fn a_worker_ends_when_its_parent_is_gone_even_while_it_hangs() {
    for (rules, busy) in [("hang", true), ("", false)] {
        let mut peer = Peer::start(rules);
        peer.open();
        let case = Case::new("a", 1);
        if busy {
            peer.say(&run_request(&case));
            std::thread::sleep(Duration::from_millis(50));
        }
        let Peer { requests, mut child, .. } = peer;
        drop(requests);
        let start = Instant::now();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
