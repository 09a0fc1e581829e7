#include "format/split_regex.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace snug {
namespace {

constexpr size_t kPatience = 4096;  // steps of one search after which states are remembered
// All searches in a text may take these steps, and this many more for each matched byte: far more than the patterns of
// models take on any text.
constexpr size_t kMaxSteps = size_t{1} << 24, kStepsOfAByte = 64;

}  // namespace

// Returns whether this state is tried for the first time. Few searches take so long that it is checked.
bool SplitRegex::is_new(uint32_t instruction, bool in_run, size_t at, Scratch& scratch) const {
  if (++scratch.steps < kPatience) return true;
  if (scratch.steps + scratch.steps_before > kMaxSteps) {
    user_error("the tokenizer's pattern {} takes more than {} steps on a text of this data; cut the text into samples",
               expression_, kMaxSteps);
  }
  return repeats_groups_ || scratch.seen.insert((uint64_t{at} * code_.size() + instruction) * 2 + in_run).second;
}

std::optional<size_t> SplitRegex::match(uint32_t start, std::string_view text, size_t at, Scratch& scratch) const {
  auto& stack = scratch.stack;
  stack.clear();
  uint32_t pc = start;
  while (true) {
    const Instruction& instruction = code_[pc];
    bool holds = true;
    switch (instruction.kind) {
      case Kind::One: {
        const size_t bytes = sets_[instruction.set].step(text, at);
        holds = bytes > 0;
        at += bytes;
        break;
      }
      case Kind::Run: {
        const size_t low = at;
        size_t last = at;
        while (const size_t bytes = sets_[instruction.set].step(text, at)) {
          holds = is_new(pc, /*in_run=*/true, at, scratch);  // else what follows was tried before, and failed
          if (!holds) break;
          last = at;
          at += bytes;
        }
        if (at > low) stack.push_back({pc + 1, last, low});
        break;
      }
      case Kind::Skip:
        at = sets_[instruction.set].skip(text, at);
        break;
      case Kind::Optional:
        at += sets_[instruction.set].step(text, at);
        break;
      case Kind::Fork:
        stack.push_back({instruction.target, at, at});
        break;
      case Kind::Jump:
        pc = instruction.target;
        continue;
      case Kind::Ahead:
        holds = sets_[instruction.set].step(text, at) > 0;
        break;
      case Kind::NotAhead:
        holds = sets_[instruction.set].step(text, at) == 0;
        break;
      case Kind::LineEnd:
        holds = at == text.size() || text[at] == '\n';
        break;
      case Kind::Match:
        return at;
    }
    ++pc;
    while (!holds) {
      if (stack.empty()) return {};
      Scratch::Resume& last = stack.back();
      pc = last.instruction;
      at = last.at;
      if (last.at > last.low) {
        last.at = start_of_last(text, last.at);
      } else {
        stack.pop_back();
      }
      holds = is_new(pc, /*in_run=*/false, at, scratch);
    }
  }
}

std::optional<std::pair<size_t, size_t>> SplitRegex::find(std::string_view text, size_t from, Scratch& scratch) const {
  scratch.steps = 0;
  if (!scratch.seen.empty()) scratch.seen.clear();
  for (size_t at = from; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const uint64_t every = starts_.size() < 64 ? (uint64_t{1} << starts_.size()) - 1 : ~uint64_t{0};
    for (uint64_t left = byte < 0x80 ? candidates_[byte] : every; left != 0; left &= left - 1) {
      const auto end = match(starts_[static_cast<size_t>(std::countr_zero(left))], text, at, scratch);
      if (!end) continue;
      const size_t steps = scratch.steps + scratch.steps_before, allowed = kStepsOfAByte * (*end - from);
      scratch.steps_before = steps - std::min(steps, allowed);
      return std::pair{at, *end};
    }
    at += decode_utf8(text, at).bytes;
  }
  return {};
}

// Returns whether a match from here on may begin with a character. Lookaheads are ignored.
bool SplitRegex::may_begin(uint32_t instruction, char32_t ascii) const {
  std::vector<bool> seen(code_.size());
  std::vector<uint32_t> left{instruction};
  while (!left.empty()) {
    const uint32_t pc = left.back();
    left.pop_back();
    if (seen[pc]) continue;
    seen[pc] = true;
    const Instruction& at = code_[pc];
    if (at.kind == Kind::Match) return true;
    const bool takes =
        at.kind == Kind::One || at.kind == Kind::Run || at.kind == Kind::Skip || at.kind == Kind::Optional;
    if (takes && sets_[at.set].contains(ascii)) return true;
    if (at.kind == Kind::Fork || at.kind == Kind::Jump) left.push_back(at.target);
    if (at.kind != Kind::One && at.kind != Kind::Jump) left.push_back(pc + 1);
  }
  return false;
}

// Returns whether what begins here might fail. If it cannot, a run before it never gives anything back.
bool SplitRegex::may_fail(uint32_t instruction) const {
  for (uint32_t pc = instruction;; ++pc) {
    const Instruction& at = code_[pc];
    switch (at.kind) {
      case Kind::Run:
      case Kind::Skip:
      case Kind::Optional:
        break;
      case Kind::Fork:
      case Kind::Jump:
        if (at.target <= pc) return true;
        pc = at.target - 1;
        break;
      case Kind::Match:
        return false;
      case Kind::One:
      case Kind::Ahead:
      case Kind::NotAhead:
      case Kind::LineEnd:
        return true;
    }
  }
}

}  // namespace snug
