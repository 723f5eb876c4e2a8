//! The parent's grip on one worker process: ask, wait no longer than allowed, and when it dies say how.

use std::io::{BufReader, PipeReader, PipeWriter, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};

use super::protocol::{
    Line, MAX_REPLY, MAX_REQUEST, REPLY_FD, REQUEST_FD, Reply, Request, decode, decode_hello, encode, read_line,
};
use super::{Launch, log::Log, sys};
use crate::backend::{DeviceInfo, Probe};

/// Descriptors in the worker; the environment tells it.
const CHILD_REQUESTS: i32 = 3;
const CHILD_REPLIES: i32 = 4;

/// How long a worker may take to leave after its request pipe was closed.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long a killed process may take to go, on a machine that has more to do than it can: longer means that it is stuck
/// in the kernel, in a GPU driver.
const REAP: Duration = Duration::from_secs(60);

/// How long a process whose pipe has ended may take to be gone by itself, so that its own signal is what is seen.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// How long to wait for the end of the log of a dead process, which something it started may hold open.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How often a waiting parent looks whether the process still exists: a pipe held open by a grandchild hides its end.
const PULSE: Duration = Duration::from_millis(100);

/// Why a worker is no longer of use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A signal ended it.
    #[error("died of {}", signal_name(*.0))]
    Signal(i32),
    /// It exited by itself.
    #[error("exited with code {0}")]
    Exit(i32),
    /// It did not answer in time, and was killed.
    #[error("gave no answer within {:.1} s and was killed", .0.as_secs_f64())]
    Silent(Duration),
    /// It broke the protocol, and was killed.
    #[error("broke the protocol: {0}")]
    Garbage(String),
    /// It was found dead or talking before it was asked: the request in hand has no part in this.
    #[error("was lost between requests: {0}")]
    DiedIdle(Box<Cause>),
    /// It was killed and does not go: a driver is stuck in the kernel.
    #[error("process {pid} cannot be killed ({why}): its driver is stuck in the kernel, restart the machine")]
    Unkillable {
        /// The process.
        pid: u32,
        /// Why it was killed.
        why: String,
    },
}

impl Cause {
    /// True where the operator or the kernel's memory killer is more likely at fault than a driver.
    pub fn is_from_outside(&self) -> bool {
        match self {
            Cause::DiedIdle(cause) => cause.is_from_outside(),
            cause => *cause == Cause::Signal(libc::SIGKILL),
        }
    }

    /// One word for reports and signatures.
    pub fn kind(&self) -> &'static str {
        match self {
            Cause::Signal(_) => "signal",
            Cause::Exit(_) => "exit",
            Cause::Silent(_) => "silent",
            Cause::Garbage(_) => "garbage",
            Cause::DiedIdle(_) => "died-idle",
            Cause::Unkillable { .. } => "unkillable",
        }
    }
}

/// The end of a worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {cause}")]
pub struct Death {
    /// Why.
    pub cause: Cause,
    /// The last of what it printed.
    pub log: String,
}

impl Death {
    /// The last line that it printed, as an addition to a sentence: usually the one that tells.
    pub fn last_line(&self) -> String {
        let last = self.log.lines().rev().map(str::trim).find(|line| !line.is_empty());
        last.map(|line| format!("; it printed last: {line}")).unwrap_or_default()
    }
}

/// Why there is no worker with an open device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No process.
    #[error("{0}")]
    Spawn(String),
    /// The worker says that it cannot.
    #[error("{0}")]
    Refused(String),
    /// The worker died of it.
    #[error(transparent)]
    Died(#[from] Death),
}

/// What the thread that reads replies, or the one that writes requests, has seen.
enum Event {
    Line(Line),
    /// The reply pipe has ended.
    End,
    /// Nobody reads requests any more.
    BrokenPipe,
}

/// A living worker process. Dropping it ends it.
pub struct Worker {
    child: Child,
    /// To the thread that writes, so that a worker that does not read cannot block the parent. `None` when closed.
    requests: Option<Sender<Vec<u8>>>,
    events: Receiver<Event>,
    log: Log,
    info: Option<DeviceInfo>,
    program: String,
    status: Option<ExitStatus>,
    /// Killed without effect: there is nothing more to try.
    stuck: bool,
}

impl Worker {
    /// Starts a worker and opens a device on it, with the fault of a mutant or as it is; `deadline` is for each of the two.
    pub fn spawn(launch: &Launch, device: &str, mutant: Option<&str>, deadline: Duration) -> Result<Self, OpenError> {
        let mut worker = Self::start(launch, deadline)?;
        let open = Request::Open { device: device.to_owned(), mutant: mutant.map(str::to_owned) };
        match worker.call(&open, deadline)? {
            Reply::Opened { info } if info.key == device => worker.info = Some(info),
            Reply::Opened { info } => {
                return Err(worker.give_up(Cause::Garbage(format!("opened '{}', not '{device}'", info.key))).into());
            }
            Reply::Refused { why } => return Err(OpenError::Refused(why)),
            other => return Err(worker.give_up(unasked(&other)).into()),
        }
        Ok(worker)
    }

    /// Asks a worker of its own which devices there are.
    pub fn probe(launch: &Launch, deadline: Duration) -> Result<Probe, OpenError> {
        let mut worker = Self::start(launch, deadline)?;
        match worker.call(&Request::Probe {}, deadline)? {
            Reply::Probed { probe } => Ok(probe),
            other => Err(worker.give_up(unasked(&other)).into()),
        }
    }

    /// Starts a worker and hears its hello.
    pub fn start(launch: &Launch, deadline: Duration) -> Result<Self, OpenError> {
        let mut worker = Self::launch(launch).map_err(|e| {
            OpenError::Spawn(format!("cannot start worker '{}': {e}", launch.program().to_string_lossy()))
        })?;
        let line = worker.receive(deadline)?;
        match decode_hello(&line) {
            Ok(program) => worker.program = program,
            Err(why) => return Err(worker.give_up(Cause::Garbage(why)).into()),
        }
        Ok(worker)
    }

    fn launch(launch: &Launch) -> std::io::Result<Self> {
        let (child_requests, requests) = std::io::pipe()?;
        let (replies, child_replies) = std::io::pipe()?;
        let (output, child_output) = std::io::pipe()?;
        let mut command = launch.command();
        command
            .env(REQUEST_FD, CHILD_REQUESTS.to_string())
            .env(REPLY_FD, CHILD_REPLIES.to_string())
            .stdout(child_output.try_clone()?)
            .stderr(child_output)
            // A group of its own: Ctrl-C reaches the parent alone, and killing the group ends what a driver started.
            .process_group(0)
            .fd_mappings(vec![
                FdMapping { parent_fd: child_requests.into(), child_fd: CHILD_REQUESTS },
                FdMapping { parent_fd: child_replies.into(), child_fd: CHILD_REPLIES },
            ])
            .map_err(std::io::Error::other)?;
        // Threads first: if one cannot be had there is no child yet that would have to be ended.
        let (tx, events) = channel();
        let (to_writer, from_parent) = channel();
        let on_write = tx.clone();
        let log = Log::start(output)?;
        thread::Builder::new().name("worker-requests".into()).spawn(move || {
            write_requests(requests, &from_parent, &on_write);
        })?;
        thread::Builder::new().name("worker-replies".into()).spawn(move || read_replies(replies, &tx))?;
        let child = command.spawn()?;
        // The command holds the child's ends of all pipes; they must close for an end to be seen.
        drop(command);
        let (requests, info, program) = (Some(to_writer), None, String::new());
        Ok(Worker { child, requests, events, log, info, program, status: None, stuck: false })
    }

    /// The open device, if [`spawn`](Worker::spawn) opened one.
    pub fn info(&self) -> Option<&DeviceInfo> {
        self.info.as_ref()
    }

    /// Name and version of the worker's program, in its own words.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request and waits for its answer. After a death the worker is gone and every further call says so.
    pub fn call(&mut self, request: &Request, deadline: Duration) -> Result<Reply, Death> {
        if let Err(cause) = self.still_idle() {
            return Err(self.give_up(cause));
        }
        let sent = encode(request, MAX_REQUEST).map(|line| self.requests.as_ref().map(|to| to.send(line)));
        match sent {
            Ok(Some(Ok(()))) => {}
            Ok(_) => return Err(self.give_up(idle("its request pipe is closed"))),
            Err(why) => return Err(self.give_up(Cause::Garbage(format!("the request cannot be sent: {why}")))),
        }
        let line = self.receive(deadline)?;
        let answer = decode::<Reply>(&line).map_err(Cause::Garbage).and_then(|reply| match (request, &reply) {
            (_, Reply::Rejected { why }) => Err(Cause::Garbage(format!("it rejects the request: {why}"))),
            (Request::Probe {}, Reply::Probed { .. }) => Ok(reply),
            (Request::Open { .. }, Reply::Opened { .. } | Reply::Refused { .. }) => Ok(reply),
            (Request::Run(run), Reply::Ran { seq, case, .. }) if (*seq, case) == (run.seq, &run.plan.case) => Ok(reply),
            (Request::Run(run), Reply::Ran { seq, case, .. }) => Err(Cause::Garbage(format!(
                "asked for request {} case '{}' it answers request {seq} case '{case}'",
                run.seq, run.plan.case
            ))),
            (_, other) => Err(unasked(other)),
        });
        answer.map_err(|cause| self.give_up(cause))
    }

    /// Is it alive and silent, as it must be before it is asked?
    fn still_idle(&mut self) -> Result<(), Cause> {
        if let Some(status) = self.poll() {
            return Err(Cause::DiedIdle(Box::new(from_status(status))));
        }
        match self.events.try_recv() {
            Ok(Event::Line(_)) => Err(idle("it wrote a reply that was not asked for")),
            Ok(Event::End | Event::BrokenPipe) => Err(Cause::DiedIdle(Box::new(self.cause_of_end()))),
            Err(_) => Ok(()),
        }
    }

    /// Waits for a line.
    fn receive(&mut self, deadline: Duration) -> Result<Vec<u8>, Death> {
        let start = Instant::now();
        let mut unread = false;
        let mut gone: Option<Instant> = None;
        let cause = loop {
            let left = deadline.saturating_sub(start.elapsed());
            match self.events.recv_timeout(left.min(PULSE)) {
                Ok(Event::Line(Line::Whole(line))) => return Ok(line),
                Ok(Event::Line(Line::TooLong)) => {
                    break Cause::Garbage(format!("a reply is longer than {MAX_REPLY} bytes"));
                }
                Ok(Event::BrokenPipe) => {
                    unread = true;
                    gone.get_or_insert_with(Instant::now);
                }
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => break self.cause_of_end(),
                Err(RecvTimeoutError::Timeout) => {
                    if self.poll().is_some() {
                        gone.get_or_insert_with(Instant::now);
                    }
                    if gone.is_some_and(|since| since.elapsed() >= LAST_BREATH) {
                        break self.cause_of_end();
                    }
                    if start.elapsed() >= deadline {
                        break Cause::Silent(deadline);
                    }
                }
            }
        };
        // A request that was not read to its end cannot have been begun.
        unread |= matches!(self.events.try_recv(), Ok(Event::BrokenPipe));
        Err(self.give_up(if unread { Cause::DiedIdle(Box::new(cause)) } else { cause }))
    }

    /// Its reply pipe has ended: how did the process end?
    fn cause_of_end(&mut self) -> Cause {
        match self.wait(LAST_BREATH) {
            Some(status) => from_status(status),
            None => Cause::Garbage("it closed its pipes and lives on".into()),
        }
    }

    /// Kills and reaps, and says what there is to say.
    fn give_up(&mut self, cause: Cause) -> Death {
        self.requests = None;
        let cause =
            if self.kill() { cause } else { Cause::Unkillable { pid: self.child.id(), why: cause.to_string() } };
        Death { cause, log: self.log.tail(LAST_WORDS) }
    }

    /// Ends the process and all that it started; false if it stays.
    fn kill(&mut self) -> bool {
        if self.status.is_none() && !self.stuck {
            sys::kill_group(self.child.id());
            self.stuck = self.wait(REAP).is_none();
        }
        !self.stuck
    }

    /// Tells the process to end: its requests end.
    pub(super) fn dismiss(&mut self) {
        self.requests = None;
    }

    /// The exit status, if it is gone; what it started goes with it.
    fn poll(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() && sys::has_ended(self.child.id()) {
            sys::kill_group(self.child.id());
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        let mut nap = Duration::from_micros(200);
        loop {
            let status = self.poll();
            if status.is_some() || Instant::now() >= until {
                return status;
            }
            thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(20));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.dismiss();
        if !self.stuck && self.wait(FAREWELL).is_none() {
            self.kill();
        }
    }
}

fn write_requests(mut pipe: PipeWriter, requests: &Receiver<Vec<u8>>, events: &Sender<Event>) {
    for line in requests {
        if pipe.write_all(&line).is_err() {
            // The receiver is gone only when the worker was given up.
            let _ = events.send(Event::BrokenPipe);
            return;
        }
    }
}

fn read_replies(pipe: PipeReader, events: &Sender<Event>) {
    let mut pipe = BufReader::new(pipe);
    while let Ok(Some(line)) = read_line(&mut pipe, MAX_REPLY) {
        if events.send(Event::Line(line)).is_err() {
            return;
        }
    }
    let _ = events.send(Event::End);
}

fn from_status(status: ExitStatus) -> Cause {
    match (status.signal(), status.code()) {
        (Some(signal), _) => Cause::Signal(signal),
        (None, code) => Cause::Exit(code.unwrap_or(-1)),
    }
}

fn idle(what: &str) -> Cause {
    Cause::DiedIdle(Box::new(Cause::Garbage(what.to_owned())))
}

fn unasked(reply: &Reply) -> Cause {
    Cause::Garbage(format!("it answers something else: {reply:?}"))
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGTERM => "SIGTERM",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
