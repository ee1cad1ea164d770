// What both passes of gpu-flash, backward, share: their parameters, and how a round's part of the score matrices lies in
// the workspace. A block is {{ rows }} queries × {{ cols }} keys; a round has, of pairs_here pairs from first_pair on, the blocks of
// q_blocks tiles of queries from q0 on against k_blocks tiles of keys from k0 on: [pair][tile of queries][tile of keys].

struct Params {
    seq_q: u32, seq_k: u32, head_dim: u32, head_dim_v: u32,
    heads: u32, group: u32, pairs: u32, kv_pairs: u32,
    q_tiles: u32, k_tiles: u32, mask_words: u32, blocks: u32, // blocks: of one plane of the workspace
    lo_offset: i32, hi_offset: i32, neg_inf_bits: u32, nan_bits: u32,
    scale: f32, score_scale: f32, softcap: f32, first_pair: u32,
    pairs_here: u32, q0: u32, k0: u32, q_blocks: u32,
    k_blocks: u32, new_queries: u32, new_keys: u32, // new: no round before this one has added to their gradients
}

alias Block = array<array<array<vec4<f32>, {{ cols // 4 }}>, {{ unroll }}>, {{ rows // unroll }}>; // [row / unroll][row % unroll][key / 4]
{% if careful %}
const HIDDEN = -3.0e38; // what a row does not see must not even be met with weight 0
{% else %}
const HIDDEN = 0.0;
{% endif %}

{% include "common/masking.wgsl" %}

// Whether any row of a tile of queries sees any key of a tile of keys, key_mask aside. Where not, a block is neither
// written nor read. The tiles that one tile sees, or is seen by, have no gap.
fn block_seen(q_tile: u32, k_tile: u32) -> bool {
    let row = q_tile * {{ rows }}u;
    let key = k_tile * {{ cols }}u;
    return key < row_end(min(row + {{ rows - 1 }}u, params.seq_q - 1u)) && key + {{ cols }}u > row_first(row);
}
