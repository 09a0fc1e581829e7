// Visits the fields of how samples become blocks (base/fields.h).
#pragma once

#include "base/fields.h"
#include "data/packing.h"

namespace snug {

// Leaves out the seed, which Numerics has too, a heartbeat, and a name for messages.
template <RecordOf<PackingOptions> R, class Visit>
void visit_fields(R& options, Visit&& visit) {
  auto& [sequence_length, packing, long_samples, shuffle, apart, pools, patches, seed, heartbeat, name] = options;
  visit("sequence_length", sequence_length);
  visit("packing", packing);
  visit("long_samples", long_samples);
  visit("shuffle", shuffle);
  visit("apart", apart);
  visit("pools", pools);
  visit("patches", patches);
}

}  // namespace snug
