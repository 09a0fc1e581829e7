// Finds the fastest arrangement of a job that fits the memory it may use.
#pragma once

#include <memory>
#include <optional>

#include "base/heartbeat.h"
#include "plan/forecast/forecast.h"
#include "plan/spec/caps.h"

namespace snug {

// Says how much of something is offloaded, and to where.
struct Offload {
  double share = 0;  // of the groups, or of the layers
  Space space = Space::Host;
};

// Holds what the user pinned; the planner chooses what is left open. For a job that does not train this is only where
// weights lie: its cut is the spec's, and it keeps neither values for a backward nor states.
struct Choices {
  int64_t batch_size = 16;
  int ranks = 1;
  std::optional<int64_t> micro_batch;
  std::optional<int64_t> passes;
  std::optional<int> zero;  // stage 0 to 3
  int replicas = 1;         // of the shards
  // Of every layer that the backward reaches; or how many of these, from the first on, are recomputed wholly.
  std::optional<Recompute> recompute;
  std::optional<int64_t> recomputed_layers;
  std::optional<Offload> activations, states, gradients, parameters;
  std::optional<bool> layer_major;
  bool speculate = false;
  bool update_in_backward = false;  // where gradients are reduced at once
};

struct Arrangement {
  Cut cut;
  Strategy strategy;
  std::string words;        // "2 passes of 8 blocks, recompute mlp, no offload"
  Forecast forecast;        // a step's bytes alone, for arrangements that are not chosen
  double step_seconds = 0;  // by the pricing that fit() was given
  bool fits = false;
};

// Holds what a rank's arenas need.
struct RankBytes {
  int rank = 0;
  PerSpace<uint64_t> bytes{};
};

struct FitResult {
  // The fastest first: the chosen one and runners-up that are cut or sharded in other ways. If nothing fits, only the
  // one that comes nearest.
  std::vector<Arrangement> tried;
  std::optional<size_t> chosen;  // by the rule below, if anything fits
  Compiled compiled;  // the chosen or nearest one, compiled for the first rank, in arenas of the fullest rank
  std::vector<RankBytes> ranks;  //   what each rank needs: all if they are few, else some
};

// Returns the factor within which steps count as about as fast as the fastest, 1.02 on cards and 1.05 on a processor,
// as forecasts are not exact. Of the arrangements that fit and are forecast to take no longer than the fastest of them
// times this factor, the simplest is chosen. The first of these that differs decides which is simpler
// (plan/search/simplicity.h):
//   1. whether it rests on memory that is only assumed;
//   2. how many kinds of things are recomputed or offloaded;
//   3. how many layers and groups these are, over all things;
//   4. how many whole GiB of host and disk a node takes, where anything is offloaded;
//   5. how many passes are moved: those of a step that goes layer by layer;
//   6. how many kinds of updates are not made after the backward: deferred, speculative, within the backward;
//   7. how far copies and fetching are from the ops that they are for;
//   8. how many groups' weights are sharded;
//   9. the time, where times within 0.3 % on cards and 2 % on a processor are one; then bytes; then the time itself.
// Where steps are not priced (Pricing::measured()) the 9th alone decides, and this is its factor.
double time_margin(const Pricing& pricing);

// Searches through cuts, stages, resident shares, recomputation, offloading and orders of a step, as far as `choices`
// leaves them open. For each cut and stage it begins with everything kept on the device and enables what costs the
// least time for the bytes that it frees, one option after the other, until all caps are kept. Then it works out the
// fastest: it disables what is not needed, down to a layer or a group, and tries other orders of the step and doing
// without one of the enabled options; for the fastest, and for the fastest that is close to it in the other order of
// passes and layers, it also tries less of one option for more of others. Where steps are priced it then looks for
// simpler arrangements within the margin: without any offloading in every cut, and without each of the enabled options
// in turn. Every arrangement that is compared was compiled and priced; what was compiled for one set of caps is
// remembered for the next.
class Fitter {
 public:
  // `spec` gives everything but cut and strategy, `pricing` all but how lanes are run (lanes_of()); they must outlive
  // the fitter. `heartbeat` is called for each arrangement that is compiled. Throws UserError if batch_size, ranks,
  // micro-batch and passes do not agree.
  Fitter(const JobSpec& spec, const Choices& choices, const OpFacts& facts, const Pricing& pricing,
         const Heartbeat& heartbeat = {});
  ~Fitter();

  FitResult fit(const Caps& caps);
  // Returns the best of a few arrangements under other caps: the one that the last fit() chose and the fastest that it
  // found, with as much enabled as these caps ask for, and others in the same passes, or the next larger or smaller.
  std::optional<Arrangement> near(const Caps& caps);
  // Returns an arrangement that takes about as few bytes as any: in the smallest passes, with all that frees bytes
  // enabled.
  Arrangement smallest(const Caps& caps);

  // Return how many arrangements were compiled so far, how many ops they have, and the words of the fastest that fits;
  // empty if none does.
  size_t compiled() const;
  uint64_t ops() const;
  std::string fastest() const;

 private:
  class Search;
  std::unique_ptr<Search> search_;
};

// Searches for one set of caps.
FitResult fit(const JobSpec& spec, const Choices& choices, const Caps& caps, const OpFacts& facts,
              const Pricing& pricing = {}, const Heartbeat& heartbeat = {});

}  // namespace snug
