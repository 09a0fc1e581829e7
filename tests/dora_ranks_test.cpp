// Norms of rows that adapters train, on several ranks.
#include <gtest/gtest.h>

#include "arranged.h"
#include "temp_directory.h"
#include "train/export.h"

namespace snug {
namespace {

// Norms that a file holds reach every rank, wherever the rest of it is.
TEST(Dora, RanksReadTheNormsOfAFile) {
  const TempDirectory directory;
  const TinyCase fresh{"llama", true, DType::BF16, 1, BaseFormat::Plain, false, 0.0};
  JobSpec spec = arranged(fresh.job(), {}, 0);
  const auto out = directory.path() / "adapter";
  {
    TinySession session(spec, 1);
    session.load();
    Outcome outcome;
    train_steps(session, 1, 2, outcome);
    export_adapter(session, out, *spec.rules.adapter, (models() / "llama").string());
  }
  spec.sources = find_sources(spec.table, {models() / "llama", false, 1, out});
  const Outcome one = train(spec, {});
  Arrangement plain;
  plain.ranks = 2;
  const Outcome two = train(spec, plain);
  EXPECT_NEAR(one.steps[0].loss, two.steps[0].loss, 1e-3 * one.steps[0].loss);
  EXPECT_NE(one.steps[0].loss, train(fresh.job(), {}).steps[0].loss);
  for (const Space space : {Space::Host, Space::Disk}) {
    Arrangement other = plain;
    other.zero = 3;
    other.weights = other.states = space;
    EXPECT_TRUE(train(spec, other) == two) << to_string(other);
  }
}

}  // namespace
}  // namespace snug
