// Processes of one job and the token ids that they share.
#include <fmt/format.h>

#include "tokens_fixture.h"

namespace snug {
namespace {

class TokensOfProcesses : public Tokens {
 protected:
  Outcome eval(int processes) const {
    const Words words = command("eval", {"--max-samples", "20000", "--json"});
    Words all{"-n", std::to_string(processes), "--oversubscribe", "--allow-run-as-root", SNUG_BINARY};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = finish(start(all, SNUG_MPIRUN));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  }
  size_t entries() const {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(at("cache/tokens"))) count += !entry.path().has_extension();
    return count;
  }
};

TEST_F(TokensOfProcesses, OneEncodesAndTheOthersTakeItsOwn) {
  const Outcome alone = eval(1);
  EXPECT_THAT(alone.err, HasSubstr(kKept));
  fs::remove_all(at("cache"));
  const Outcome first = eval(3), second = eval(3);
  EXPECT_EQ(entries(), 1u);
  EXPECT_THAT(first.err, ::testing::AnyOf(HasSubstr(kKept), HasSubstr(kUsed)));  // whichever is the first process
  EXPECT_THAT(second.err, HasSubstr(kUsed));
  EXPECT_EQ(first.out, alone.out);
  EXPECT_EQ(second.out, alone.out);
}

// Some find it, others make it: what they have is the same, so that they go on together.
TEST_F(TokensOfProcesses, WithCachesOfTheirOwnTheyAgreeToo) {
  const Outcome kept = run_well(command("eval", {"--max-samples", "20000", "--json", "--cache-dir", "cache0"}));
  put(at("differ"), "exec \"$@\" --cache-dir cache$OMPI_COMM_WORLD_RANK\n");
  Words all{"-n", "2", "--oversubscribe", "--allow-run-as-root", "/bin/sh", "differ", SNUG_BINARY};
  const Words words = command("eval", {"--max-samples", "20000", "--json"});
  all.insert(all.end(), words.begin(), words.end());
  const Outcome outcome = finish(start(all, SNUG_MPIRUN));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, kept.out);
  EXPECT_TRUE(fs::exists(at("cache1/tokens")));
}

}  // namespace
}  // namespace snug
