//! Tables as drivers could give them: some boards, some drivers, each with its own order, spelling and gaps.

use std::collections::BTreeMap;

use super::{Claims, Kind, Listed, MemoryClaim, PciId, Rules, Uuid, invariant, tell_apart};

/// A table, and what only its maker knows.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// What drivers say.
    pub devices: Vec<Listed>,
    /// The board that each device is, or is on.
    pub boards: Vec<usize>,
}

/// A board, with the parts into which it is cut: one, or several of a MIG device.
struct Board {
    bus: PciId,
    parts: Vec<Uuid>,
    kind: Kind,
}

/// The four drivers, and the stems of their keys.
const DRIVERS: [&str; 4] = ["cuda", "opencl-nvidia", "ggml-a-cuda", "ggml-b-vulkan"];

/// Draws a table from a seed, the same everywhere.
pub fn draw(seed: u64) -> Drawn {
    let mut stream = Stream(seed);
    let boards = boards(&mut stream);
    let mut drawn = Drawn { devices: Vec::new(), boards: Vec::new() };
    for driver in DRIVERS {
        if stream.one_in(4) {
            continue;
        }
        let mut list: Vec<(usize, Uuid)> = Vec::new();
        for (number, board) in boards.iter().enumerate() {
            for part in &board.parts {
                // A driver may miss one, and may list it twice.
                let times = if stream.one_in(6) { 2 * usize::from(stream.one_in(2)) } else { 1 };
                list.extend(std::iter::repeat_n((number, *part), times));
            }
        }
        stream.shuffle(&mut list);
        // Many drivers say it of all their devices or of none.
        let (tells_bus, tells_uuid) = (stream.below(5), stream.below(3));
        for (index, (number, uuid)) in list.into_iter().enumerate() {
            let mut claims = claims(&mut stream, &boards[number], uuid, [tells_bus, tells_uuid]);
            (claims.driver, claims.index) = (driver.to_owned(), index as u32);
            let name = if stream.one_in(5) { "GPU" } else { "NVIDIA H200" };
            let listed = |form: &str| Listed {
                key: format!("{driver}-{index}{form}"),
                name: name.to_owned(),
                driver: "1.0".to_owned(),
                identity: claims.clone(),
                properties: BTreeMap::new(),
            };
            drawn.devices.push(listed(""));
            drawn.boards.push(number);
            if driver == "opencl-nvidia" && stream.one_in(2) {
                drawn.devices.push(listed("+f16"));
                drawn.boards.push(number);
            }
        }
    }
    drawn
}

/// Up to four boards, near each other and apart, some with a UUID that another has.
fn boards(stream: &mut Stream) -> Vec<Board> {
    let mut by_bus: BTreeMap<PciId, Board> = BTreeMap::new();
    for _ in 0..1 + stream.below(4) {
        let domain = [0, 0, 1, 0x10000][stream.below(4)];
        let numbers = [stream.below(3), stream.below(2), stream.below(4)].map(|n| n as u32);
        let [bus, device, function] = numbers;
        let Some(bus) = PciId::new(domain, 0x3a + bus, device, function) else { continue };
        let is_cut = stream.one_in(5);
        let parts = (0..if is_cut { 2 } else { 1 }).map(|_| uuid(stream)).collect();
        let kind = match is_cut {
            true => Kind::Virtual,
            false => [Kind::Discrete, Kind::Discrete, Kind::Integrated][stream.below(3)],
        };
        by_bus.insert(bus, Board { bus, parts, kind });
    }
    by_bus.into_values().collect()
}

/// One of a few dozen UUIDs, so that two boards may well have the same.
fn uuid(stream: &mut Stream) -> Uuid {
    let byte = stream.below(24) as u8;
    Uuid::from_bytes(std::array::from_fn(|i| 0x8a ^ byte.wrapping_mul(i as u8 + 1)))
}

fn claims(stream: &mut Stream, board: &Board, uuid: Uuid, [tells_bus, tells_uuid]: [usize; 2]) -> Claims {
    let bus = match tells_bus {
        0 => None,
        1 if stream.one_in(2) => None,
        _ => Some(spelled(stream, board.bus)),
    };
    let uuid = match tells_uuid {
        0 => None,
        1 if stream.one_in(2) => None,
        1 if stream.one_in(8) => Some(Uuid::from_bytes([0; 16]).to_string()),
        _ if stream.one_in(2) => Some(format!("GPU-{uuid}")),
        _ => Some(uuid.to_string().to_uppercase()),
    };
    let kind = if stream.one_in(8) { Kind::Integrated } else { board.kind };
    let total = 1 + stream.below(64) as u64;
    // Some drivers say more is free than there is.
    let free = stream.below(80) as u64;
    let memory = MemoryClaim { free: (!stream.one_in(3)).then_some(free), total: (!stream.one_in(6)).then_some(total) };
    Claims { pci: bus, uuid, kind, memory, ..Claims::default() }
}

/// One of the ways to write a bus id, and some to write none.
fn spelled(stream: &mut Stream, bus: PciId) -> String {
    let text = bus.to_string();
    match stream.below(12) {
        0..4 => text,
        4..6 => text.to_uppercase(),
        6..8 => format!("{:0>16}", text.to_uppercase()),
        8 => text.strip_prefix("0000:").unwrap_or(&text).to_owned(),
        9 => "0000:00:00.0".to_owned(),
        10 => String::new(),
        _ => text + "\n",
    }
}

/// What is wrong with the rules on the table of this seed: with it as it is, in another order, and with some devices
/// hidden and the rest numbered anew.
pub fn trial(seed: u64, rules: &Rules) -> Result<(), String> {
    let drawn = draw(seed);
    let told = tell_apart(&drawn.devices, rules);
    invariant::check(&drawn.devices, &told)?;
    let board = |key: &str| drawn.devices.iter().position(|d| d.key == key).map(|i| drawn.boards[i]);
    for physical in &told {
        if let Some(other) = physical.devices.iter().find(|d| board(&d.key) != board(&physical.devices[0].key)) {
            return Err(format!("{} and {} are on different boards", physical.devices[0].key, other.key));
        }
    }
    let mut stream = Stream(!seed);
    let mut shuffled = drawn.devices.clone();
    stream.shuffle(&mut shuffled);
    if tell_apart(&shuffled, rules) != told {
        return Err("another order gives other GPUs".to_owned());
    }
    let hidden = stream.below(7);
    let (left, before): (Vec<Listed>, Vec<&Listed>) =
        renumbered(&drawn.devices, |d| d.identity.index as usize != hidden);
    let moved = left.iter().zip(before).find(|(now, before)| (rules.alias)(now) != (rules.alias)(before));
    match moved {
        Some((now, before)) => Err(format!("{}, now {}, has another alias", before.key, now.key)),
        None => invariant::check(&left, &tell_apart(&left, rules)).and_then(|()| invariant::names(&left, rules)),
    }
}

/// The devices that are kept, with the numbers and keys they have when the others are hidden from their drivers, beside
/// what they were.
fn renumbered(devices: &[Listed], keep: impl Fn(&Listed) -> bool) -> (Vec<Listed>, Vec<&Listed>) {
    let is_before = |d: &Listed, of: &Listed| {
        let (d, of) = (&d.identity, &of.identity);
        d.driver == of.driver && d.index < of.index
    };
    let before: Vec<&Listed> = devices.iter().filter(|d| keep(d)).collect();
    let renumber = |d: &&Listed| {
        // Forms have one place.
        let is_whole = |other: &&Listed| other.stem_and_form().1.is_empty();
        let index = devices.iter().filter(|other| keep(other) && is_before(other, d)).filter(is_whole).count();
        let mut now = (*d).clone();
        now.identity.index = index as u32;
        now.key = format!("{}-{index}{}", d.identity.driver, d.stem_and_form().1);
        now
    };
    (before.iter().map(renumber).collect(), before)
}

/// SplitMix64: a stream of numbers that is the same everywhere.
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below a small one.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
