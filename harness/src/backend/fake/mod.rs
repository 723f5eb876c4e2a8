//! A driver that misbehaves on purpose, so that the harness can be seen to notice.
//!
//! It exists only where `CONFORM_FAKE` is set, to a list of rules
//! `behaviour[=value][@part-of-case-id][*times]` separated by `;`. Its one
//! device, `fake-0`, wraps a correct device and breaks the promise that a rule
//! names, for the cases that the rule matches:
//!
//! ```text
//! CONFORM_FAKE='crash@argsort*1;scale=1.01@w=q8_0'
//! ```

mod lies;
mod moves;
mod rules;

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

use conform_cases::formats::ElemType;
use conform_cases::plan::{Part, Plan, Step, Tensor};

use super::cpu::{CpuDevice, Stages};
use super::routing::Reuse;
use super::{Capabilities, Device, DeviceError, DeviceInfo, DeviceMemory, Driver, Guards, LoadError, Probe};
use crate::mutants::Edits;
use crate::worker::sys;
use lies::Output;
use moves::PutOff;
use rules::{Behaviour, Rules};
pub use rules::{FAKE, FAKE_STATE};

/// The backend's name.
pub const NAME: &str = "fake";

/// The key of the only device.
const KEY: &str = "fake-0";

/// The rules of this process.
static RULES: LazyLock<Result<Rules, String>> = LazyLock::new(Rules::from_env);

/// The driver; [`drivers`](super::drivers) lists it where `CONFORM_FAKE` is set.
pub static DRIVER: Fake = Fake;

/// A driver with one device that breaks promises.
#[derive(Debug)]
pub struct Fake;

impl Fake {
    /// True if this process was asked to have such a driver.
    pub fn is_wanted() -> bool {
        std::env::var_os(FAKE).is_some()
    }
}

impl Driver for Fake {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Probe {
        match RULES.as_ref() {
            Ok(rules) => {
                let asked = |b: &Behaviour| matches!(b, Behaviour::ProbeCrash | Behaviour::ProbeChatter);
                match rules.draw("", asked) {
                    Some(Behaviour::ProbeCrash) => std::process::abort(),
                    Some(_) => print(CHATTER, 20),
                    None => {}
                }
                Probe::Found(vec![describe(CpuDevice::new(Stages::default()).info(), rules)])
            }
            Err(why) => Probe::Missing(why.clone()),
        }
    }

    fn open(&self, key: &str) -> Result<Box<dyn Device>, DeviceError> {
        Self::open_with(key, CpuDevice::new(Stages::default()))
    }

    fn open_mutant(&self, key: &str, edits: &Edits) -> Result<Box<dyn Device>, DeviceError> {
        let swap = edits.rust.ok_or_else(|| DeviceError("it swaps no stage".to_owned()))?;
        Self::open_with(key, CpuDevice::new(swap(Stages::default())))
    }

    fn open_reusing(&self, key: &str, reuse: Reuse) -> Result<Box<dyn Device>, DeviceError> {
        Self::open_with(key, CpuDevice::new(Stages::default()).with_reuse(reuse))
    }
}

impl Fake {
    fn open_with(key: &str, inner: CpuDevice) -> Result<Box<dyn Device>, DeviceError> {
        let rules = RULES.as_ref().map_err(|why| DeviceError(why.clone()))?;
        if key != KEY {
            return Err(DeviceError(format!("no device '{key}', only {KEY}")));
        }
        if rules.draw("", |b| matches!(b, Behaviour::RefuseOpen)).is_some() {
            return Err(DeviceError("the fake driver was told to refuse".into()));
        }
        Ok(Box::new(FakeDevice::new(rules, Box::new(inner))))
    }
}

/// The error of `CONFORM_FAKE`, if it is set and makes no sense: one line.
pub fn check() -> Result<(), String> {
    RULES.as_ref().map(|_| ()).map_err(Clone::clone)
}

/// What [`serve`](crate::worker::serve()) should do to its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolLie {
    /// Write something that is no message.
    Garbage,
    /// Answer another request.
    WrongCase,
}

/// The lie that this process was told to tell about a case, if any. Lies about values are the device's own business;
/// these need the hand that writes replies.
pub fn protocol_lie(case: &str) -> Option<ProtocolLie> {
    let drawn = RULES.as_ref().ok()?.draw(case, |b| matches!(b, Behaviour::Garbage | Behaviour::WrongCase))?;
    Some(if *drawn == Behaviour::Garbage { ProtocolLie::Garbage } else { ProtocolLie::WrongCase })
}

fn describe(inner: &DeviceInfo, rules: &Rules) -> DeviceInfo {
    DeviceInfo {
        key: KEY.into(),
        backend: NAME.into(),
        name: format!("fake device over {}", inner.name),
        driver: inner.driver.clone(),
        identity: rules.identity(),
        properties: BTreeMap::new(),
        capabilities: Capabilities { readable_inputs: true, guards: true, ..inner.capabilities },
    }
}

/// A correct device, and what to break of it.
struct FakeDevice {
    info: DeviceInfo,
    inner: Box<dyn Device>,
    rules: &'static Rules,
    plan: Option<Plan>,
    /// Drawn for the loaded plan.
    active: Vec<&'static Behaviour>,
    /// What was last written to each tensor from its start: outputs begin as poison.
    written: Vec<Vec<u8>>,
    runs: u32,
    /// Bytes of memory that are lost.
    leaked: u64,
    /// Moved later than it should be.
    put_off: PutOff,
    /// A plan without operations has misbehaved.
    has_begun: bool,
}

impl FakeDevice {
    fn new(rules: &'static Rules, inner: Box<dyn Device>) -> Self {
        let info = describe(inner.info(), rules);
        FakeDevice {
            info,
            inner,
            rules,
            plan: None,
            active: Vec::new(),
            written: Vec::new(),
            runs: 0,
            leaked: 0,
            put_off: PutOff::default(),
            has_begun: false,
        }
    }
}

impl Device for FakeDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn decode(&self, ty: ElemType, blocks: &[u8], out: &mut [f32]) -> Result<(), LoadError> {
        self.inner.decode(ty, blocks, out)
    }

    fn load(&mut self, plan: &Plan) -> Result<(), LoadError> {
        self.active = self.rules.draw_all(&plan.case, Behaviour::is_of_device);
        if self.active.contains(&&Behaviour::Unsupported) {
            return Err(LoadError::Unsupported("the fake driver was told to support nothing".into()));
        }
        self.inner.load(plan)?;
        self.written = vec![Vec::new(); plan.tensors.len()];
        self.plan = Some(plan.clone());
        self.runs = 0;
        self.has_begun = false;
        Ok(())
    }

    fn write(&mut self, tensor: usize, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.put_off.act(&mut *self.inner)?;
        if let (0, Some(written)) = (offset, self.written.get_mut(tensor)) {
            *written = bytes.to_vec();
        }
        self.inner.write(tensor, offset, bytes)
    }

    fn read(&mut self, tensor: usize, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.put_off.act(&mut *self.inner)?;
        let Some(plan) = &self.plan else { return self.inner.read(tensor, offset, bytes) };
        let Some(t) = plan.tensors.get(tensor) else { return self.inner.read(tensor, offset, bytes) };
        // Lies are about the whole tensor, whatever part of it is asked for.
        let mut whole = vec![0; t.parent_bytes()];
        self.inner.read(tensor, 0, &mut whole)?;
        let is_first_input = plan.tensors.iter().position(Tensor::is_input) == Some(tensor);
        for behaviour in &self.active {
            match behaviour {
                Behaviour::Lie(lie) if t.is_output() => {
                    lie.tell(&mut Output::new(t, &mut whole, &self.written[tensor], self.runs));
                }
                Behaviour::TouchInput if is_first_input => lies::touch(&mut whole),
                _ => {}
            }
        }
        let part = offset.checked_add(bytes.len()).and_then(|end| whole.get(offset..end));
        let part = part.ok_or_else(|| DeviceError(format!("read past the end of tensor '{}'", t.name)))?;
        bytes.copy_from_slice(part);
        Ok(())
    }

    fn copy(&mut self, from: usize, parts: &[Part]) -> Result<(), DeviceError> {
        self.begin()?;
        self.put_off.act(&mut *self.inner)?;
        self.move_lie().copy(&mut *self.inner, &mut self.put_off, from, parts)
    }

    fn upload(&mut self, from: &[u8], parts: &[Part]) -> Result<(), DeviceError> {
        self.begin()?;
        self.put_off.act(&mut *self.inner)?;
        let sizes = self.plan.iter().flat_map(|p| &p.tensors).map(Tensor::parent_bytes);
        let sizes: Vec<usize> = sizes.collect();
        self.move_lie().upload(&mut *self.inner, &mut self.put_off, &sizes, from, parts)
    }

    fn fetch(&mut self, to: &mut [u8], parts: &[Part]) -> Result<(), DeviceError> {
        self.begin()?;
        if self.active.iter().any(|b| matches!(b, Behaviour::Lie(_) | Behaviour::TouchInput)) {
            // They are told to whoever reads.
            return parts
                .iter()
                .flat_map(|p| p.pieces().map(move |at| (p, at)))
                .try_for_each(|(p, (here, there))| self.read(p.tensor, here, &mut to[there..there + p.size]));
        }
        self.put_off.fetch(&mut *self.inner, to, parts)
    }

    fn poison_scratch(&mut self, pattern: u32) -> Result<(), DeviceError> {
        self.inner.poison_scratch(pattern)
    }

    fn run(&mut self, steps: Range<usize>) -> Result<(), DeviceError> {
        self.put_off.act(&mut *self.inner)?;
        for behaviour in &self.active {
            misbehave(behaviour)?;
        }
        self.runs += 1;
        self.inner.run(steps)
    }

    fn guards(&mut self) -> Result<Option<Guards>, DeviceError> {
        let mut guards = self.inner.guards()?.unwrap_or_default();
        let (healthy, hit) = ([0xa5; 8], [0xa5, 0xa5, 0xa5, 0xa5, 0, 0, 0, 0]);
        for t in self.plan.iter().flat_map(|plan| &plan.tensors) {
            let is_hit = t.is_output() && self.active.contains(&&Behaviour::GuardHit);
            let after = if is_hit { &hit } else { &healthy };
            guards.look(&t.name, t.parent_bytes(), [&healthy, after], [&healthy; 2]);
        }
        Ok(Some(guards))
    }

    fn sorts(&self) -> Option<u64> {
        self.inner.sorts()
    }

    fn memory(&self) -> Option<DeviceMemory> {
        const TOTAL: u64 = 1 << 30;
        (self.leaked > 0).then_some(DeviceMemory { free: TOTAL.saturating_sub(self.leaked), total: TOTAL })
    }

    fn free(&mut self) {
        let leaks = self.active.iter().map(|b| if let Behaviour::Leak(bytes) = b { *bytes } else { 0 });
        self.leaked += leaks.sum::<u64>();
        self.put_off = PutOff::default();
        self.inner.free();
        self.plan = None;
        self.active.clear();
        self.written.clear();
    }
}

impl FakeDevice {
    /// The first of the active lies about moving bytes, or the truth.
    fn move_lie(&self) -> moves::MoveLie {
        let lies = self.active.iter().filter_map(|b| if let Behaviour::Move(lie) = b { Some(*lie) } else { None });
        lies.into_iter().next().unwrap_or_default()
    }

    /// In a plan that has no operation, what would happen while it runs happens with the first bytes that are moved.
    fn begin(&mut self) -> Result<(), DeviceError> {
        let only_moves = self.plan.as_ref().is_some_and(|p| p.steps.iter().all(Step::moves_bytes));
        if only_moves && !std::mem::replace(&mut self.has_begun, true) {
            self.active.iter().try_for_each(|b| misbehave(b))?;
        }
        Ok(())
    }
}

/// What happens while a kernel should be running.
fn misbehave(behaviour: &Behaviour) -> Result<(), DeviceError> {
    match behaviour {
        Behaviour::Crash => std::process::abort(),
        Behaviour::Segv => sys::segfault(),
        Behaviour::Exit => sys::exit_now(3),
        Behaviour::Hang => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        Behaviour::Slow(time) => std::thread::sleep(*time),
        Behaviour::Flood => print(&[b'~'; 1 << 16], 1 << 10),
        Behaviour::Chatter => print(CHATTER, 20),
        Behaviour::Error => return Err(DeviceError("fakeLaunchKernel: out of luck (-5)".into())),
        _ => {}
    }
    Ok(())
}

/// Looks like the protocol, on a channel that is not the protocol's.
const CHATTER: &[u8] =
    b"{\"type\":\"ran\",\"seq\":1,\"case\":\"c\",\"outcome\":{\"verdict\":\"unsupported\",\"why\":\"no\"}}\n";

fn print(text: &[u8], times: usize) {
    let mut out = std::io::stdout().lock();
    for _ in 0..times {
        // A driver does not care whether anybody listens.
        let _ = out.write_all(text);
    }
    let _ = out.flush();
}
