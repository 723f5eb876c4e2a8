//! The worker's side: reads requests, drives a device, answers.
//!
//! Two threads. One reads requests, and ends the process the moment the parent
//! is gone, whatever the other is stuck in; the main thread, on which drivers
//! like to live, executes. It runs what it is told and judges nothing.

use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::execute::execute;
use super::protocol::{
    Line, MAX_REPLY, MAX_REQUEST, Observed, Outcome, PROTOCOL, REPLY_FD, REQUEST_FD, Reply, Request, Run, Times,
    decode, read_line, send,
};
use super::{check, shared, sys};
use crate::backend::fake::{self, ProtocolLie};
use crate::backend::{Device, DeviceError, Driver, Probe, drivers};
use crate::mutants;

/// Serves one backend until the parent goes away. This is all that a worker process does.
pub fn serve(backend: &str) -> ExitCode {
    let (requests, mut replies) = match (inherited(REQUEST_FD), inherited(REPLY_FD)) {
        (Ok(requests), Ok(replies)) => (requests, replies),
        (Err(why), _) | (_, Err(why)) => {
            eprintln!("conform worker: {why}: workers are started by other conform commands, not by hand");
            return ExitCode::from(2);
        }
    };
    let driver = drivers().into_iter().find(|d| d.name() == backend);
    if let Some(driver) = driver {
        driver.prepare_process();
    }
    sys::keep_freed_memory();
    let hello = Reply::Hello { protocol: PROTOCOL, program: format!("conform {}", env!("CARGO_PKG_VERSION")) };
    let (tx, rx) = channel();
    let reader = std::thread::Builder::new().name("requests".into()).spawn(move || read_requests(requests, &tx));
    if let Err(e) = reader.and(send(&mut replies, &hello, MAX_REPLY)) {
        eprintln!("conform worker: cannot start: {e}");
        return ExitCode::FAILURE;
    }
    Server { backend, driver, device: None }.answer_all(&rx, &mut replies);
    // Only a broken reply pipe leads here: nobody is left to be told.
    ExitCode::FAILURE
}

fn inherited(name: &str) -> Result<File, String> {
    let number = std::env::var(name).map_err(|_| format!("environment lacks {name}"))?;
    let fd = number.parse().ok().filter(|fd| *fd > 2).ok_or_else(|| format!("{name}={number} is no descriptor"))?;
    sys::take_fd(fd).map_err(|e| format!("{name}={number}: {e}"))
}

/// Never returns: it ends the process when the parent closes the pipe, at once, because the main thread may hang in a
/// driver and exit handlers of drivers may hang as well.
fn read_requests(pipe: File, to: &Sender<Result<Request, String>>) {
    let mut pipe = BufReader::new(pipe);
    loop {
        let request = match read_line(&mut pipe, MAX_REQUEST) {
            Ok(Some(Line::Whole(line))) => decode(&line),
            Ok(Some(Line::TooLong)) => Err(format!("request is longer than {MAX_REQUEST} bytes")),
            Ok(None) => sys::exit_now(0),
            Err(_) => sys::exit_now(1),
        };
        if to.send(request).is_err() {
            return;
        }
    }
}

struct Server<'a> {
    backend: &'a str,
    driver: Option<&'static dyn Driver>,
    device: Option<Box<dyn Device>>,
}

impl Server<'_> {
    fn answer_all(mut self, requests: &Receiver<Result<Request, String>>, replies: &mut File) {
        for request in requests {
            let reply = match request {
                Ok(request) => self.answer(request),
                Err(why) => Reply::Rejected { why },
            };
            if self.tell(replies, reply).is_break() {
                return;
            }
        }
    }

    fn answer(&mut self, request: Request) -> Reply {
        match request {
            Request::Probe {} => {
                Reply::Probed { probe: self.driver.map_or_else(|| Probe::Missing(self.no_driver()), Driver::probe) }
            }
            Request::Open { device, mutant } => self.open(&device, mutant.as_deref()),
            Request::Run(run) => match self.run(&run) {
                Ok((outcome, times, observed)) => {
                    let memory = self.device.as_ref().and_then(|device| device.memory());
                    Reply::Ran { seq: run.seq, case: run.plan.case, outcome, times, memory, observed }
                }
                Err(why) => Reply::Rejected { why },
            },
        }
    }

    fn no_driver(&self) -> String {
        let known: Vec<_> = drivers().iter().map(|d| d.name()).collect();
        format!("this conform has no backend '{}', only: {}", self.backend, known.join(", "))
    }

    fn open(&mut self, key: &str, mutant: Option<&str>) -> Reply {
        self.device = None;
        let Some(driver) = self.driver else { return Reply::Refused { why: self.no_driver() } };
        let opened = match mutant {
            None => driver.open(key),
            Some(id) => mutants::open(driver, key, id),
        };
        match opened {
            Ok(device) => {
                let info = device.info().clone();
                self.device = Some(device);
                Reply::Opened { info }
            }
            Err(DeviceError(why)) => Reply::Refused { why },
        }
    }

    /// Executes one request; an error means that the request makes no sense.
    fn run(&mut self, run: &Run) -> Result<(Outcome, Times, Observed), String> {
        let device = self.device.as_deref_mut().ok_or("run was asked for before a device was opened")?;
        let inputs = shared::map_inputs(&run.inputs, run.layout.input_bytes)?;
        let mut results = shared::map_results(&run.results, run.layout.result_bytes)?;
        check::check(&run.plan, &run.layout, run.poisons.len(), inputs.len(), results.len())?;
        let mut times = Times::default();
        let (outcome, guards) = match execute(device, run, &inputs, &mut results, &mut times) {
            Ok(guards) => (Outcome::Done {}, guards),
            Err(outcome) => (outcome, None),
        };
        let sorts = device.sorts();
        device.free();
        let observed = Observed { sorts, guards, complaints: device.complaints() };
        Ok((outcome, times, observed))
    }

    /// Writes a reply, or what the fake driver wants the parent to see instead of it.
    fn tell(&self, replies: &mut File, mut reply: Reply) -> ControlFlow<()> {
        if let Reply::Ran { seq, case, .. } = &mut reply
            && self.backend == fake::NAME
        {
            match fake::protocol_lie(case) {
                None => {}
                Some(ProtocolLie::Garbage) => {
                    use std::io::Write;
                    let _ = replies.write_all(b"\x00\xffno json\n");
                }
                Some(ProtocolLie::WrongCase) => {
                    *seq += 1;
                    case.push('x');
                }
            }
        }
        match send(replies, &reply, MAX_REPLY) {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                eprintln!("conform worker: cannot reply: {e}");
                ControlFlow::Break(())
            }
        }
    }
}
