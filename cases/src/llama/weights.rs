//! Models of a few layers with random weights: about 300 KB each.
//!
//! Names, keys and shapes are those of the GGUF files that llama.cpp writes for these architectures.

use super::gguf::{Gguf, Value};
use crate::formats::ElemType;
use crate::id::words;
use crate::state::shape::{KvShape, RecurrentShape};
use crate::stream::{Stream, unit};

words! {
    /// What kind of memory a model has.
    pub enum Arch: "architecture" {
        /// Attention (`llama`).
        Llama = "llama",
        /// Attention, and four experts of which two are used.
        Moe = "moe",
        /// Recurrent.
        Mamba = "mamba",
        /// Attention of which three layers of four see a sliding window (`cohere2`).
        Window = "swa",
        /// A recurrent layer, then one of attention (`jamba`).
        Hybrid = "hybrid",
    }
}

/// Tokens of the vocabulary.
pub const VOCABULARY: usize = 128;

/// Layers, but for a model with a sliding window: every fourth of its layers sees everything.
const LAYERS: usize = 2;

/// Width of a token.
const WIDTH: usize = 64;

/// Heads, and those of K and V.
const HEADS: [usize; 2] = [4, 2];

/// Width of a head.
const HEAD: usize = 16;

/// Width of a feed-forward layer.
const FORWARD: usize = 96;

/// Experts, and how many a token uses.
const EXPERTS: [usize; 2] = [4, 2];

/// Tokens that a sliding window covers: fewer than scenarios decode.
const SLIDING: usize = 12;

/// Inner width of a mamba layer.
const INNER: usize = 128;

/// States of a mamba layer, for each of its inner width.
const STATES: usize = 16;

/// Columns of its convolution.
const COLUMNS: usize = 4;

/// Rank of its time step.
const RANK: usize = 4;

/// A part of a model's memory.
#[derive(Clone, Copy, Debug)]
pub enum Cache {
    /// K and V of layers.
    Kv(KvShape),
    /// States of layers.
    Recurrent(RecurrentShape),
}

/// A model, and how its memory is kept.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Its architecture.
    pub arch: Arch,
    /// Types of K and V.
    pub types: [ElemType; 2],
}

impl Variant {
    /// Types of K and V unless others are asked for.
    pub const DEFAULT_TYPES: [ElemType; 2] = [ElemType::F16; 2];

    /// A model whose memory is kept as builds keep it by default.
    pub fn of(arch: Arch) -> Self {
        Variant { arch, types: Self::DEFAULT_TYPES }
    }

    /// The caches of a memory, in the order of a blob; a partial state is the last alone.
    pub fn caches(self, streams: usize, cells: usize, sequences: usize, v_trans: bool) -> Vec<Cache> {
        let embd = HEADS[1] * HEAD;
        let kv = |layers| {
            Cache::Kv(KvShape {
                streams,
                cells,
                sequences,
                layers,
                k_embd: embd,
                v_embd: embd,
                k_type: self.types[0],
                v_type: self.types[1],
                v_trans,
                has_xy: false,
                window: 0,
            })
        };
        let recurrent = |layers, others| {
            Cache::Recurrent(RecurrentShape {
                cells,
                sequences,
                layers,
                others,
                r_embd: (COLUMNS - 1) * INNER,
                s_embd: STATES * INNER,
                r_type: ElemType::F32,
                s_type: ElemType::F32,
                s_trans: false,
            })
        };
        match self.arch {
            Arch::Llama | Arch::Moe => vec![kv(LAYERS)],
            Arch::Mamba => vec![recurrent(LAYERS, 0)],
            // The layer that sees everything, then those that don't.
            Arch::Window => vec![kv(1), kv(3)],
            Arch::Hybrid => vec![kv(1), recurrent(1, 1)],
        }
    }
}

impl Arch {
    /// The name in a file, which a whole state begins with.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Llama | Arch::Moe => "llama",
            Arch::Mamba => "mamba",
            Arch::Window => "cohere2",
            Arch::Hybrid => "jamba",
        }
    }

    fn layers(self) -> usize {
        if self == Arch::Window { 4 } else { LAYERS }
    }

    /// A layer with a state instead of attention.
    fn is_recurrent(self, layer: usize) -> bool {
        self == Arch::Mamba || self == Arch::Hybrid && layer == 0
    }
}

/// The file of a model.
pub fn gguf(arch: Arch, seed: u64) -> Vec<u8> {
    let mut model = Builder { file: Gguf::default(), stream: Stream::new(seed, 0x6c6c_616d), tensors: 0 };
    let name = arch.name();
    model.file.pair("general.architecture", Value::Text(name));
    model.file.pair("tokenizer.ggml.model", Value::Text("no_vocab"));
    let number = |value: usize| Value::U32(value as u32);
    let mut put = |key: &str, value| model.file.pair(format!("{name}.{key}"), value);
    put("vocab_size", number(VOCABULARY));
    put("context_length", number(1024));
    put("embedding_length", number(WIDTH));
    put("block_count", number(arch.layers()));
    put("attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    if arch == Arch::Mamba {
        put("feed_forward_length", number(0));
        put("attention.head_count", number(0));
    } else {
        put("feed_forward_length", number(FORWARD));
        put("attention.head_count", number(HEADS[0]));
        // Of each layer where some have none.
        match arch {
            Arch::Hybrid => put("attention.head_count_kv", Value::List(vec![0, HEADS[1] as u32])),
            _ => put("attention.head_count_kv", number(HEADS[1])),
        }
        put("attention.key_length", number(HEAD));
        put("attention.value_length", number(HEAD));
        put("rope.dimension_count", number(HEAD));
    }
    if arch.is_recurrent(0) {
        put("ssm.conv_kernel", number(COLUMNS));
        put("ssm.inner_size", number(INNER));
        put("ssm.state_size", number(STATES));
        put("ssm.time_step_rank", number(RANK));
    }
    match arch {
        Arch::Moe => {
            put("expert_count", number(EXPERTS[0]));
            put("expert_used_count", number(EXPERTS[1]));
        }
        Arch::Window => {
            put("attention.sliding_window", number(SLIDING));
            put("attention.layer_norm_epsilon", Value::F32(1e-5));
            put("logit_scale", Value::F32(0.25));
        }
        Arch::Llama | Arch::Mamba | Arch::Hybrid => {}
    }
    model.random("token_embd.weight", &[WIDTH, VOCABULARY]);
    model.ones("output_norm.weight", WIDTH);
    if arch != Arch::Window {
        model.random("output.weight", &[WIDTH, VOCABULARY]);
    }
    for layer in 0..arch.layers() {
        if arch.is_recurrent(layer) {
            model.mamba_layer(arch, layer);
        } else {
            model.attention_layer(layer);
        }
        model.forward(arch, layer);
    }
    model.file.bytes()
}

/// A file, and where its numbers come from.
struct Builder {
    file: Gguf,
    stream: Stream,
    tensors: u64,
}

impl Builder {
    /// Numbers that keep the size of what they are multiplied with: uniform, of variance 1 over the first dimension. Rows
    /// of the embedding have the size that norms give.
    fn random(&mut self, name: impl Into<String>, shape: &[usize]) {
        let scale = (3.0 / shape[0] as f64).sqrt();
        self.uniform(name, shape, [-scale, scale]);
    }

    fn uniform(&mut self, name: impl Into<String>, shape: &[usize], [low, high]: [f64; 2]) {
        let stream = self.stream.at(self.tensors);
        self.tensors += 1;
        let count: usize = shape.iter().product();
        let values = (0..count as u64).map(|i| (low + (high - low) * unit(stream.word(i))) as f32).collect();
        self.file.tensor(name, shape, values);
    }

    fn ones(&mut self, name: impl Into<String>, len: usize) {
        self.file.tensor(name, &[len], vec![1.0; len]);
    }

    fn attention_layer(&mut self, layer: usize) {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let [queries, keys] = HEADS.map(|heads| heads * HEAD);
        self.ones(name("attn_norm"), WIDTH);
        self.random(name("attn_q"), &[WIDTH, queries]);
        self.random(name("attn_k"), &[WIDTH, keys]);
        self.random(name("attn_v"), &[WIDTH, keys]);
        self.random(name("attn_output"), &[queries, WIDTH]);
    }

    /// What follows attention, or a state where the model has attention as well.
    fn forward(&mut self, arch: Arch, layer: usize) {
        if arch == Arch::Mamba {
            return;
        }
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        // Attention and feed-forward of `cohere2` stand side by side behind one norm.
        if arch != Arch::Window {
            self.ones(name("ffn_norm"), WIDTH);
        }
        if arch == Arch::Moe {
            let experts = EXPERTS[0];
            self.random(name("ffn_gate_inp"), &[WIDTH, experts]);
            self.random(name("ffn_gate_exps"), &[WIDTH, FORWARD, experts]);
            self.random(name("ffn_up_exps"), &[WIDTH, FORWARD, experts]);
            self.random(name("ffn_down_exps"), &[FORWARD, WIDTH, experts]);
        } else {
            self.random(name("ffn_gate"), &[WIDTH, FORWARD]);
            self.random(name("ffn_up"), &[WIDTH, FORWARD]);
            self.random(name("ffn_down"), &[FORWARD, WIDTH]);
        }
    }

    fn mamba_layer(&mut self, arch: Arch, layer: usize) {
        let name = |part: &str| format!("blk.{layer}.{part}");
        self.ones(name("attn_norm.weight"), WIDTH);
        self.random(name("ssm_in.weight"), &[WIDTH, 2 * INNER]);
        self.random(name("ssm_conv1d.weight"), &[COLUMNS, INNER]);
        self.uniform(name("ssm_conv1d.bias"), &[INNER], [-0.1, 0.1]);
        self.random(name("ssm_x.weight"), &[INNER, RANK + 2 * STATES]);
        if arch == Arch::Hybrid {
            self.ones(name("ssm_dt_norm.weight"), RANK);
            self.ones(name("ssm_b_norm.weight"), STATES);
            self.ones(name("ssm_c_norm.weight"), STATES);
        }
        self.random(name("ssm_dt.weight"), &[RANK, INNER]);
        self.uniform(name("ssm_dt.bias"), &[INNER], [-2.0, 0.0]);
        // Negative: states decay.
        self.uniform(name("ssm_a"), &[STATES, INNER], [-1.0, -0.05]);
        self.uniform(name("ssm_d"), &[INNER], [0.5, 1.0]);
        self.random(name("ssm_out.weight"), &[INNER, WIDTH]);
    }
}
