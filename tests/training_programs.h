// Programs with the shape of real ones, for tests: sizes, lives, lanes and spaces as lowering gives them, no
// mathematics.
#pragma once

#include <random>

#include "program_builder.h"

namespace snug {

struct TrainingShape {
  uint64_t layers = 4, tokens = 64, hidden = 64, qkv = 96, ffn = 192, vocabulary = 1000, head_chunks = 2, ranks = 4;
  uint64_t tile_bytes = 4096;   // of a parameter, in the update and in files
  bool gather = true;           // weights lie in shards and are gathered for each use
  bool recompute = true;        // a block's forward runs again in its backward
  bool offload = true;          // block inputs wait on the host
  bool stream_states = true;    // optimizer state lies on the host
  bool deferred_update = true;  // the first pass updates each block's weights just before it uses them
  OpId retire_after = 12;
};

// load, a ring of train programs (first, middle, last pass, update), evaluation and saving. With a deferred update
// there is one more program: a first pass in which the gradients of the last one die.
class TrainingPrograms {
 public:
  explicit TrainingPrograms(const TrainingShape& shape) : s_(shape), p_("load") {
    make_storage();
    load();
    for (const bool pending : {false, true})
      if (!pending || s_.deferred_update) first_[pending] = pass("first", true, pending);
    middle_ = pass("middle", false, false);
    last_ = pass("last", false, false);
    update_ = update_program();
    evaluate_ = evaluate();
    save_ = save();
    link();
  }

  ProgramSet build() const { return p_.build(); }

  // A walk over the programs that begins with load.
  std::vector<ProgramId> walk(size_t length, uint64_t seed) const {
    std::mt19937_64 random(seed);
    const ProgramSet set = build();
    std::vector<ProgramId> sequence{0};
    while (sequence.size() < length) {
      const std::vector<ProgramId>& next = set.programs[sequence.back()].next;
      sequence.push_back(next[random() % next.size()]);
    }
    return sequence;
  }

 private:
  std::string named(std::string_view what, uint64_t l) const { return fmt::format("{}.{}", what, l); }
  uint64_t block_weights() const { return 2 * (2 * s_.hidden * s_.qkv + 3 * s_.hidden * s_.ffn); }  // bytes in bf16
  uint64_t shard() const { return s_.gather ? (block_weights() + s_.ranks - 1) / s_.ranks : block_weights(); }
  uint64_t rows(uint64_t width) const { return 2 * s_.tokens * width; }

  void make_storage() {
    const Space state_space = s_.stream_states ? Space::Host : Space::Device;
    for (uint64_t l = 0; l < s_.layers; l++) {
      weights_.push_back(p_.buffer(named("weights", l), shard(), Life::Persistent));
      states_.push_back(p_.buffer(named("states", l), 5 * shard(), Life::Persistent, state_space));
      gradients_.push_back(p_.buffer(named("gradients", l), shard(), Life::Carried));
      sums_.push_back(p_.buffer(named("sums", l), 2 * shard(), Life::Carried));
    }
    table_ = p_.buffer("table", 2 * s_.vocabulary * s_.hidden, Life::Persistent);
    table_sum_ = p_.buffer("table.sum", 4 * s_.vocabulary * s_.hidden, Life::Carried);
    loss_ = p_.buffer("loss", 4, Life::Carried);
  }

  // Files are read and written in ranges of one size whatever lies in them; only the last is shorter.
  uint64_t range_bytes(uint64_t l, uint64_t end) const {
    return l + 1 == s_.layers && end == shard() ? s_.tile_bytes / 3 + 1 : s_.tile_bytes;
  }

  void load() {
    for (uint64_t l = 0; l < s_.layers; l++) {
      for (uint64_t at = 0; at < shard(); at += s_.tile_bytes) {
        const uint64_t end = std::min(at + s_.tile_bytes, shard());
        const BufferId file = p_.buffer(named("staging", l), range_bytes(l, end), Life::Program, Space::Host);
        const BufferId device = p_.buffer(named("copied", l), range_bytes(l, end));
        p_.op(named("read", l), {.lane = Lane::DiskIn, .writes = {file}, .retire_after = s_.retire_after});
        p_.op(named("copy", l),
              {.lane = Lane::CopyIn, .reads = {file}, .writes = {device}, .retire_after = s_.retire_after});
        p_.op(named("cast", l), {.reads = {device}, .writes = {{weights_[l], at, end}}});
      }
      p_.op(named("fill", l), {.lane = s_.stream_states ? Lane::Host : Lane::Compute, .writes = {states_[l]}});
    }
    p_.op("table", {.writes = {table_}});
  }

  // What a block's forward leaves.
  struct Saved {
    BufferId input = 0, qkv = 0, attention = 0, lse = 0, middle = 0, gate_up = 0;
    BufferId host = 0;  // copy of `input`
  };

  void product(const std::string& site, std::vector<Part> reads, std::vector<Part> writes) {
    const BufferId scratch = p_.buffer(site + ".scratch", 1024, Life::Program, Space::Device, Role::Scratch);
    writes.emplace_back(scratch);
    p_.op(site, {.reads = std::move(reads), .writes = std::move(writes)});
  }

  BufferId gathered(uint64_t l) {
    if (!s_.gather) return weights_[l];
    const BufferId all = p_.buffer(named("gathered", l), block_weights());
    p_.op(named("gather", l),
          {.lane = Lane::Gather, .reads = {weights_[l]}, .writes = {all}, .retire_after = s_.retire_after});
    return all;
  }

  // Returns the block's output; without `complete` it ends before the last product, as recomputing does.
  BufferId forward(uint64_t l, BufferId weights, Saved& saved, bool complete) {
    auto make = [&](std::string_view what, uint64_t bytes) { return p_.buffer(named(what, l), bytes); };
    const BufferId norm1 = make("norm1", rows(s_.hidden)), norm2 = make("norm2", rows(s_.hidden));
    saved.qkv = make("qkv", rows(s_.qkv));
    saved.attention = make("attention", rows(s_.hidden));
    saved.lse = make("lse", 4 * s_.tokens);
    saved.middle = make("middle", rows(s_.hidden));
    saved.gate_up = make("gate_up", rows(2 * s_.ffn));
    p_.op(named("norm1", l), {.reads = {saved.input, weights}, .writes = {norm1}});
    product(named("qkv", l), {norm1, weights}, {saved.qkv});
    p_.op(named("rope", l), {.reads = {positions_}, .updates = {saved.qkv}});
    p_.op(named("attention", l), {.reads = {saved.qkv}, .writes = {saved.attention, saved.lse}});
    product(named("o", l), {saved.attention, weights, saved.input}, {saved.middle});
    p_.op(named("norm2", l), {.reads = {saved.middle, weights}, .writes = {norm2}});
    product(named("gate_up", l), {norm2, weights}, {saved.gate_up});
    if (!complete) return saved.middle;
    const BufferId h = make("swiglu", rows(s_.ffn)), output = make("output", rows(s_.hidden));
    p_.op(named("swiglu", l), {.reads = {saved.gate_up}, .writes = {h}});
    product(named("down", l), {h, weights, saved.middle}, {output});
    return output;
  }

  void backward(uint64_t l, BufferId weights, const Saved& saved, BufferId dx, bool first) {
    auto make = [&](std::string_view what, uint64_t bytes) { return p_.buffer(named(what, l), bytes); };
    const BufferId dw = make("dw", block_weights()), h = make("h", rows(s_.ffn)), dh = make("dh", rows(s_.ffn));
    const uint64_t down = 2 * s_.hidden * s_.ffn, gate_up = 3 * down, o = gate_up + 2 * s_.hidden * s_.qkv;
    product(named("down_dx", l), {dx, weights}, {dh});
    p_.op(named("swiglu_again", l), {.reads = {saved.gate_up}, .writes = {h}});
    product(named("down_dw", l), {dx, h}, {{dw, 0, down}});
    const BufferId dgate_up = make("dgate_up", rows(2 * s_.ffn)), dnorm2 = make("dnorm2", rows(s_.hidden));
    p_.op(named("swiglu_dx", l), {.reads = {dh, saved.gate_up}, .writes = {dgate_up}});
    const BufferId norm2 = make("norm2_again", rows(s_.hidden)), norm1 = make("norm1_again", rows(s_.hidden));
    p_.op(named("norm2_again", l), {.reads = {saved.middle, weights}, .writes = {norm2}});
    product(named("gate_up_dw", l), {dgate_up, norm2}, {{dw, down, gate_up}});
    product(named("gate_up_dx", l), {dgate_up, weights}, {dnorm2});
    p_.op(named("norm2_dx", l), {.reads = {dnorm2, saved.middle, weights}, .updates = {dx}});
    const BufferId dattention = make("dattention", rows(s_.hidden)), dqkv = make("dqkv", rows(s_.qkv));
    product(named("o_dw", l), {dx, saved.attention}, {{dw, gate_up, o}});
    product(named("o_dx", l), {dx, weights}, {dattention});
    product(named("attention_dx", l), {dattention, saved.qkv, saved.attention, saved.lse}, {dqkv});
    p_.op(named("rope_dx", l), {.reads = {positions_}, .updates = {dqkv}});
    const BufferId dnorm1 = make("dnorm1", rows(s_.hidden));
    p_.op(named("norm1_again", l), {.reads = {saved.input, weights}, .writes = {norm1}});
    product(named("qkv_dw", l), {dqkv, norm1}, {{dw, o, block_weights()}});
    product(named("qkv_dx", l), {dqkv, weights}, {dnorm1});
    p_.op(named("norm1_dx", l), {.reads = {dnorm1, saved.input, weights}, .updates = {dx}});
    p_.op(named("reduce", l),
          {.lane = Lane::Reduce, .reads = {dw}, .writes = {gradients_[l]}, .retire_after = s_.retire_after});
    if (first)
      p_.op(named("sum", l), {.reads = {gradients_[l]}, .writes = {sums_[l]}});
    else
      p_.op(named("sum", l), {.reads = {gradients_[l]}, .updates = {sums_[l]}});
  }

  BufferId batch() {
    const BufferId ids = p_.buffer("ids.host", 8 * s_.tokens, Life::Program, Space::Host);
    positions_ = p_.buffer("ids", 8 * s_.tokens);
    p_.op("fill_batch", {.lane = Lane::Host, .writes = {ids}, .retire_after = s_.retire_after});
    p_.op("ids", {.lane = Lane::CopyIn, .reads = {ids}, .writes = {positions_}, .retire_after = s_.retire_after});
    const BufferId x = p_.buffer("embedded", rows(s_.hidden));
    p_.op("embedding", {.reads = {positions_, table_}, .writes = {x}});
    return x;
  }

  // Logits in chunks; returns the gradient of x.
  BufferId head(BufferId x, bool first, bool gradient) {
    const BufferId dx = p_.buffer("head.dx", rows(s_.hidden)), losses = p_.buffer("losses", 4 * s_.tokens);
    const uint64_t tokens = s_.tokens / s_.head_chunks;
    for (uint64_t c = 0; c < s_.head_chunks; c++) {
      const BufferId logits = p_.buffer(named("logits", c), 4 * tokens * s_.vocabulary);
      const uint64_t begin = 2 * s_.hidden * tokens * c, end = 2 * s_.hidden * tokens * (c + 1);
      product(named("logits", c), {{x, begin, end}, table_}, {logits});
      p_.op(named("loss", c), {.writes = {{losses, 4 * tokens * c, 4 * tokens * (c + 1)}}, .updates = {logits}});
      if (!gradient) continue;
      product(named("head_dx", c), {logits, table_}, {{dx, begin, end}});
      if (first && c == 0)
        product(named("head_dw", c), {logits, {x, begin, end}}, {table_sum_});
      else
        product(named("head_dw", c), {logits, {x, begin, end}, table_sum_}, {table_sum_});
    }
    if (first || !gradient)
      p_.op("loss", {.reads = {{losses, 0, 4 * tokens * s_.head_chunks}}, .writes = {loss_}});
    else
      p_.op("loss", {.reads = {{losses, 0, 4 * tokens * s_.head_chunks}}, .updates = {loss_}});
    return dx;
  }

  ProgramId pass(std::string name, bool first, bool pending) {
    const ProgramId id = p_.begin_program(pending ? name + ".pending" : name);
    std::vector<Saved> saved(s_.layers);
    BufferId x = batch();
    for (uint64_t l = 0; l < s_.layers; l++) {
      if (pending) update(l);
      saved[l].input = x;
      x = forward(l, gathered(l), saved[l], true);
      if (!s_.offload) continue;
      saved[l].host = p_.buffer(named("input.host", l), rows(s_.hidden), Life::Program, Space::Host);
      p_.op(named("copy_out", l), {.lane = Lane::CopyOut,
                                   .reads = {saved[l].input},
                                   .writes = {saved[l].host},
                                   .retire_after = s_.retire_after});
    }
    if (pending) update_table();
    const BufferId dx = head(x, first, true);
    for (uint64_t l = s_.layers; l-- > 0;) {
      const BufferId weights = gathered(l);
      if (s_.offload) {
        saved[l].input = p_.buffer(named("input.back", l), rows(s_.hidden));
        p_.op(named("copy_in", l), {.lane = Lane::CopyIn,
                                    .reads = {saved[l].host},
                                    .writes = {saved[l].input},
                                    .retire_after = s_.retire_after});
      }
      if (s_.recompute) forward(l, weights, saved[l], false);
      backward(l, weights, saved[l], dx, first);
    }
    p_.op("embedding_dw", {.reads = {dx, positions_}, .updates = {table_sum_}});
    return id;
  }

  void update_table() { p_.op("update_table", {.reads = {table_sum_}, .updates = {table_}}); }

  // The state of a block goes through the device tile by tile.
  void update(uint64_t l) {
    for (uint64_t at = 0; at < shard(); at += s_.tile_bytes) {
      const uint64_t end = std::min(at + s_.tile_bytes, shard());
      const Part gradient{sums_[l], 2 * at, 2 * end}, weight{weights_[l], at, end}, state{states_[l], 5 * at, 5 * end};
      if (!s_.stream_states) {
        p_.op(named("adamw", l), {.reads = {gradient}, .updates = {weight, state}});
        continue;
      }
      const BufferId tile = p_.buffer(named("state", l), 5 * (end - at));
      p_.op(named("state_in", l),
            {.lane = Lane::CopyIn, .reads = {state}, .writes = {tile}, .retire_after = s_.retire_after});
      p_.op(named("adamw", l), {.reads = {gradient}, .updates = {weight, tile}});
      p_.op(named("state_out", l),
            {.lane = Lane::CopyOut, .reads = {tile}, .writes = {state}, .retire_after = s_.retire_after});
    }
  }

  ProgramId update_program() {
    const ProgramId id = p_.begin_program("update");
    const BufferId loss = p_.buffer("loss.host", 4, Life::Program, Space::Host);
    p_.op("loss_out", {.lane = Lane::CopyOut, .reads = {loss_}, .writes = {loss}});
    p_.op("take_loss", {.lane = Lane::Host, .reads = {loss}});
    for (uint64_t l = 0; l < s_.layers; l++) update(l);
    update_table();
    return id;
  }

  ProgramId evaluate() {
    const ProgramId id = p_.begin_program("evaluate");
    BufferId x = batch();
    for (uint64_t l = 0; l < s_.layers; l++) {
      Saved saved;
      saved.input = x;
      x = forward(l, gathered(l), saved, true);
    }
    head(x, true, false);
    const BufferId loss = p_.buffer("loss.host", 4, Life::Program, Space::Host);
    p_.op("loss_out", {.lane = Lane::CopyOut, .reads = {loss_}, .writes = {loss}});
    p_.op("take_loss", {.lane = Lane::Host, .reads = {loss}});
    return id;
  }

  ProgramId save() {
    const ProgramId id = p_.begin_program("save");
    for (uint64_t l = 0; l < s_.layers; l++)
      for (uint64_t at = 0; at < shard(); at += s_.tile_bytes) {
        const uint64_t end = std::min(at + s_.tile_bytes, shard());
        const BufferId staging = p_.buffer(named("staging", l), range_bytes(l, end), Life::Program, Space::Host);
        p_.op(named("copy", l), {.lane = Lane::CopyOut,
                                 .reads = {{weights_[l], at, end}},
                                 .writes = {staging},
                                 .retire_after = s_.retire_after});
        p_.op(named("write", l), {.lane = Lane::DiskOut, .reads = {staging}, .retire_after = s_.retire_after});
        p_.op(named("write_state", l),
              {.lane = Lane::DiskOut, .reads = {{states_[l], 5 * at, 5 * end}}, .retire_after = s_.retire_after});
      }
    return id;
  }

  void link() {
    p_.follow(0, {first_[0], evaluate_});
    p_.follow(first_[0], {middle_, last_});
    p_.follow(middle_, {middle_, last_});
    p_.follow(last_, {update_});
    p_.follow(update_, {first_[0], evaluate_, save_});
    p_.follow(evaluate_, {first_[0], save_});
    p_.follow(save_, {first_[0], evaluate_});
    if (!s_.deferred_update) return;
    p_.follow(last_, {first_[1]});
    p_.follow(first_[1], {middle_, last_});
  }

  TrainingShape s_;
  ProgramBuilder p_;
  std::vector<BufferId> weights_, states_, gradients_, sums_;  // by layer
  BufferId table_ = 0, table_sum_ = 0, loss_ = 0, positions_ = 0;
  std::array<ProgramId, 2> first_{};  // by whether an update is pending
  ProgramId middle_ = 0, last_ = 0, update_ = 0, evaluate_ = 0, save_ = 0;
};

}  // namespace snug
