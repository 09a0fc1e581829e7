// Describes a job by what the user chooses and the planner never changes (Numerics), by how a step is cut (Cut), and by
// where bytes live and when work happens (Strategy), which never changes a bit of a result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "model/activation.h"
#include "model/params.h"
#include "program/program.h"

namespace snug {

// Muon orthogonalises the updates of the matrices of layers' linears and adapters; AdamW does the rest. Adafactor keeps
// means of rows and columns of all that is trained. APOLLO keeps moments of projections of the same matrices as Muon;
// AdamW does the rest.
enum class Optimizer : uint8_t { AdamW, Lion, ScheduleFreeAdamW, Muon, Adafactor, Apollo };
std::string_view name(Optimizer optimizer);
// Returns whether updates of some parameters need the whole of their gradients.
inline bool updates_matrices(Optimizer optimizer) {
  return optimizer == Optimizer::Muon || optimizer == Optimizer::Adafactor || optimizer == Optimizer::Apollo;
}
// Returns the optimizer of a name; throws UserError for another name.
Optimizer optimizer_from_name(std::string_view name);

// Says what APOLLO gives a scale: each row (or column) of a matrix, or the matrix.
enum class ScaleType : uint8_t { Channel, Tensor };

struct Numerics {
  DType compute = DType::BF16;  // of products and activations: BF16 or F32
  bool fp8_products = false;    // of linears; frozen ones are kept in Fp8 then, and compute is BF16
  DType base = DType::BF16;     // of frozen weights that are not quantized: BF16 or F32
  BaseFormat base_format =
      BaseFormat::Plain;              // of frozen linears; embeddings, head, norms and biases are never quantized
  bool plain_scales = false;          // Nf4: its scales are not quantised themselves
  DType accumulator = DType::F32;     // of gradients summed over passes
  bool reduce_once_per_step = false;  // ranks are summed once a step, else in every pass
  int64_t logits_chunk_rows = 1024;   // rows of a chunk of logits
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  float max_grad_norm = 1;
  StateFormat state = StateFormat::Fp32;   // Bit8 with BF16 products only
  uint64_t seed = 42;                      // of dropout, noise and stochastic rounding
  Optimizer optimizer = Optimizer::AdamW;  // those but AdamW with state in Fp32 only
  double neftune_alpha = 0;                // of noise on the embeddings of what is trained on; 0: none
  // Of Apollo: numbers to which a row or column is projected, at most, steps between projections, and what an update is
  // scaled by the root of.
  int64_t apollo_rank = 256, apollo_update_interval = 200;
  double apollo_scale = 1;
  ScaleType apollo_scale_type = ScaleType::Channel;

  // Returns to how many numbers APOLLO projects each row (or column, where those are more) of a matrix.
  int64_t projected_to(const Shape& matrix) const { return std::min({apollo_rank, matrix.rows(), matrix.cols()}); }

  bool quantized_base() const { return base_format != BaseFormat::Plain; }
  // Returns the dtype of gradients, which is the products'. Trainable weights are fp32 in value: plain where products
  // are fp32, else split into the bf16 weight and the 16 bits that complete it; with 8-bit state they are the bf16
  // weight alone.
  DType gradient() const { return compute; }
  bool split_master() const { return compute == DType::BF16 && state != StateFormat::Bit8; }
};

struct Cut {
  int64_t sequence_length = 2048;
  int64_t micro_batch = 1;  // blocks of a rank in a pass
  int64_t passes = 1;       // of a step
  int ranks = 1;
  // Lists shorter shapes of a pass, in eighths of its tokens, ascending. A pass whose documents are few enough on every
  // rank takes the shortest shape that holds them, and computes no padding beyond it.
  std::vector<int> short_eighths{};
  // Lists how many patches of images the blocks of a pass may have on average, descending; empty: the model has no
  // tower, or the data no images. A pass takes the fewest that hold those of the rank that has the most.
  std::vector<int64_t> patches{};

  int64_t tokens() const { return micro_batch * sequence_length; }  // of a rank in a pass, at most
  int64_t step_tokens() const { return tokens() * passes * ranks; }
  // Returns the number of shapes: of each number of patches the whole one, then short_eighths in their order.
  int shapes() const { return token_shapes() * std::max(1, static_cast<int>(patches.size())); }
  int token_shapes() const { return static_cast<int>(short_eighths.size()) + 1; }
  int64_t tokens_of(int shape) const;
  int64_t patches_of(int shape) const;
  // Returns the shape with the fewest tokens, and the fewest patches, that has room for these.
  int shape_for(int64_t tokens, int64_t patches = 0) const;
};

// Says which forward values are recomputed in the backward instead of kept, by the words of the option.
enum class Recompute : uint8_t { None, Mlp, Attention, Block };
std::string_view name(Recompute recompute);
ActivationPolicy policy_of(Recompute recompute);
// Returns the policy with everything offloaded that it does not recompute.
ActivationPolicy offloaded(ActivationPolicy policy);
// Return words for what is recomputed ("none", "mlp", "attention + residual") and for what is offloaded.
std::string recompute_words(const ActivationPolicy& policy);
std::string offload_words(const ActivationPolicy& policy);

// Says where a group of parameters lives. Weights on the host or disk are sharded, whatever `shard_weights` says, and
// where weights are sharded so are states.
struct GroupPlacement {
  bool shard_weights = false, shard_states = false;
  Space weights = Space::Device, states = Space::Device, gradients = Space::Device;
  bool operator==(const GroupPlacement&) const = default;
};

struct Strategy {
  std::vector<ActivationPolicy> activations;  // by layer
  std::vector<GroupPlacement> groups;         // by group
  int replicas = 1;                           // hybrid shard: shards are cut over ranks / replicas
  bool reduce_in_backward = true;  // gradients are reduced when a group is complete, else after the whole pass
  bool layer_major = false;        // all passes go through a layer before any goes through the next
  bool defer_updates = false;      // a group is updated in the next step, just before its weights are used there
  bool speculate = false;  // offloaded state is updated within the backward with a clip factor of 1, into a back
                           // buffer; a step that is clipped is applied again from the front buffer
  bool update_in_backward = false;   // of all groups, in place, with no norm to wait for; gradients reduced at once
  int64_t gather_ahead = 1;          // groups whose weights are fetched or gathered ahead of their use
  Space offloaded_to = Space::Host;  // where offloaded forward values lie
  int64_t buffer_hold_ops = 12;      // ops for which the buffers of a copy stay reserved beyond it
  bool operator==(const Strategy&) const = default;
};

// Returns a strategy that keeps everything on the device of one rank.
Strategy plain_strategy(const ParamTable& table, Recompute recompute = Recompute::None);

// Sets the placement of a ZeRO stage (Rajbhandari et al., arXiv:1910.02054): 1 shards optimizer state; 2 also reduces a
// group's gradients as soon as they are complete; 3 shards weights as well.
void set_zero_stage(Strategy& strategy, int stage);
// Returns the stage of the first group's placement.
int zero_stage(const Strategy& strategy);

// Returns whether anything is offloaded to this space, Host or Disk.
bool offloads(const Strategy& strategy, Space space);

// Returns Threads where transfers of offloaded arrays, or collectives, can overlap with computing. Both the run and its
// pricing ask here.
LaneMode lanes_of(const Strategy& strategy, const Cut& cut);

}  // namespace snug
