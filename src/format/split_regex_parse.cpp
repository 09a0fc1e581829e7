// Defines SplitRegex's constructor: an expression becomes a tree, and the tree becomes instructions.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <map>
#include <tuple>

#include "base/error.h"
#include "format/split_regex.h"

namespace snug {
namespace {

constexpr size_t kMaxInstructions = 4096;
constexpr int kMaxDepth = 64;
constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();

struct Node {
  enum class Kind { Set, All, Any, Repeat, Ahead, NotAhead, LineEnd };
  Kind kind = Kind::All;
  uint32_t set = 0;
  std::vector<Node> children{};  // All: one after another; Any: the first that fits
  uint32_t least = 0, most = 0;  // Repeat
  bool possessive = false;
};

const std::map<std::string_view, Categories>& named_categories() {
  using enum Category;
  static const std::map<std::string_view, Categories> names{
      {"L", kLetter},         {"M", kMark},           {"N", kNumber},
      {"P", kPunctuation},    {"S", kSymbol},         {"Z", categories(Zs, Zl, Zp)},
      {"Lu", categories(Lu)}, {"Ll", categories(Ll)}, {"Lt", categories(Lt)},
      {"Lm", categories(Lm)}, {"Lo", categories(Lo)}, {"Mn", categories(Mn)},
      {"Mc", categories(Mc)}, {"Me", categories(Me)}, {"Nd", categories(Nd)},
      {"Nl", categories(Nl)}, {"No", categories(No)}, {"Pc", categories(Pc)},
      {"Pd", categories(Pd)}, {"Ps", categories(Ps)}, {"Pe", categories(Pe)},
      {"Pi", categories(Pi)}, {"Pf", categories(Pf)}, {"Po", categories(Po)},
      {"Sm", categories(Sm)}, {"Sc", categories(Sc)}, {"Sk", categories(Sk)},
      {"So", categories(So)}, {"Zs", categories(Zs)}, {"Zl", categories(Zl)},
      {"Zp", categories(Zp)}, {"Cf", categories(Cf)}, {"Cc", categories(Cc, WhiteControl)},
      {"Co", categories(Co)}};
  return names;
}

size_t shortest(const Node& node) {
  size_t least = node.kind == Node::Kind::Any ? std::numeric_limits<size_t>::max() : 0;
  for (const Node& child : node.children) {
    const size_t bytes = shortest(child);
    if (node.kind == Node::Kind::Any) {
      least = std::min(least, bytes);
    } else {
      least = std::min<size_t>(least + bytes, 1);
    }
  }
  if (node.kind == Node::Kind::Set) return 1;
  return node.kind == Node::Kind::Repeat && node.least == 0 ? 0 : least;
}

}  // namespace

class SplitRegexCompiler {
 public:
  SplitRegexCompiler(std::string_view text, SplitRegex& regex, const SplitRegex::Fail& fail)
      : text_(text), regex_(regex), fail_(fail) {}

  void compile() {
    if (find_invalid_utf8(text_)) refuse("UTF-8");
    const Node tree = parse_any(0);
    if (at_ < text_.size()) refuse("no ')' without its '('");
    if (shortest(tree) == 0) refuse("a pattern that matches no empty text");
    const bool apart = tree.kind == Node::Kind::Any && tree.children.size() <= 64;
    for (const Node& alternative : apart ? tree.children : std::vector<Node>{tree}) {
      regex_.starts_.push_back(place());
      emit(alternative);
      emit({SplitRegex::Kind::Match});
    }
    for (uint32_t pc = 0; pc < regex_.code_.size(); ++pc) {
      auto& instruction = regex_.code_[pc];
      if (instruction.kind == SplitRegex::Kind::Run && !regex_.may_fail(pc + 1)) {
        instruction.kind = SplitRegex::Kind::Skip;
      }
    }
    for (char32_t c = 0; c < 0x80; ++c) {
      for (size_t i = 0; i < regex_.starts_.size(); ++i) {
        if (regex_.may_begin(regex_.starts_[i], c)) regex_.candidates_[c] |= uint64_t{1} << i;
      }
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& expected) const {
    const std::string_view rest = text_.substr(std::min(at_, text_.size()));
    fail_(
        fmt::format("{} where the expression has '{}'", expected, rest.substr(0, rest.size() > 24 ? 24 : rest.size())));
    internal_error("a refused expression was taken");
  }

  bool ends() const { return at_ >= text_.size(); }
  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  char32_t next() {
    if (ends()) refuse("more of it");
    const CodePoint point = decode_utf8(text_, at_);
    at_ += point.bytes;
    return point.value;
  }

  uint32_t keep(CharSet set) {
    set.finish();
    regex_.sets_.push_back(std::move(set));
    return static_cast<uint32_t>(regex_.sets_.size() - 1);
  }
  Node set_node(CharSet set) { return {.kind = Node::Kind::Set, .set = keep(std::move(set))}; }

  Node parse_any(int depth) {
    if (depth > kMaxDepth) refuse("fewer groups within each other");
    Node any{.kind = Node::Kind::Any};
    do any.children.push_back(parse_all(depth));
    while (take("|"));
    if (any.children.size() > 1) return any;
    Node only = std::move(any.children.front());
    return only;
  }

  Node parse_all(int depth) {
    Node all{.kind = Node::Kind::All};
    while (!ends() && text_[at_] != '|' && text_[at_] != ')') all.children.push_back(quantified(parse_one(depth)));
    return all;
  }

  Node parse_one(int depth) {
    if (take("(?!")) return ahead(Node::Kind::NotAhead, depth);
    if (take("(?=")) return ahead(Node::Kind::Ahead, depth);
    if (take("(?i:")) return group(depth, true);
    if (take("(?:")) return group(depth, ignore_case_);
    if (text_.substr(at_).starts_with("(?")) refuse("(?:...), (?i:...), (?!...) or (?=...)");
    if (take("(")) return group(depth, ignore_case_);
    if (take("$")) return {.kind = Node::Kind::LineEnd};
    CharSet set;
    if (take("[")) {
      parse_set(set);
    } else if (take(".")) {
      set.add('\n', '\n');
      set.negate();
    } else if (take("\\")) {
      if (!escaped_categories(set)) add_letter(escaped_character(), set);
    } else if (std::string_view("^*+?{").find(text_[at_]) != std::string_view::npos) {
      refuse("a literal, a set or a group");
    } else {
      add_letter(next(), set);
    }
    return set_node(std::move(set));
  }

  Node group(int depth, bool ignore_case) {
    const bool before = std::exchange(ignore_case_, ignore_case);
    Node inside = parse_any(depth + 1);
    if (!take(")")) refuse("')'");
    ignore_case_ = before;
    return inside;
  }

  Node ahead(Node::Kind kind, int depth) {
    const Node inside = group(depth, ignore_case_);
    if (inside.children.size() != 1 || inside.children[0].kind != Node::Kind::Set)
      refuse("one character in a lookahead");
    return {.kind = kind, .set = inside.children[0].set};
  }

  // Adds a letter as it is, or ignoring case by simple case folding, by which the long s (U+017F) is an s and the
  // Kelvin sign (U+212A) a k.
  void add_letter(char32_t c, CharSet& set) {
    set.add(c, c);
    if (!ignore_case_) return;
    if (c >= 0x80) refuse("ASCII where case is ignored");
    const char32_t lower = c | 0x20;
    if (lower < 'a' || lower > 'z') return;
    // Ligatures and the sharp s are two letters if case is ignored.
    const bool joins = (before_ == 's' && (lower == 's' || lower == 't')) ||
                       (before_ == 'f' && (lower == 'f' || lower == 'i' || lower == 'l'));
    if (joins && letter_end_ < at_ && letter_end_ + 1 == at_)
      refuse("no letters that have a ligature where case is ignored");
    before_ = lower;
    letter_end_ = at_;
    set.add(lower, lower);
    set.add(lower - 0x20, lower - 0x20);
    if (lower == 's') set.add(0x17f, 0x17f);
    if (lower == 'k') set.add(0x212a, 0x212a);
  }

  // Reads what stands behind a backslash, if it is a set.
  bool escaped_categories(CharSet& set) {
    if (take("s")) return set.add(kSpace), true;
    if (take("S")) return set.add_all_but(kSpace), true;
    if (take("d")) return set.add(categories(Category::Nd)), true;
    if (take("D")) return set.add_all_but(categories(Category::Nd)), true;
    const bool all_but = text_.substr(at_).starts_with("P{");
    if (!take("p{") && !take("P{")) return false;
    const bool turned = take("^");
    const std::string_view name = text_.substr(at_, std::min(text_.find('}', at_), text_.size()) - at_);
    const auto found = named_categories().find(name);
    if (found == named_categories().end()) refuse("a general category as \\p{L} or \\p{Lu}");
    at_ += name.size();
    if (!take("}")) refuse("'}'");
    all_but != turned ? set.add_all_but(found->second) : set.add(found->second);
    return true;
  }

  // Reads what stands behind a backslash, if it is a character.
  char32_t escaped_character() {
    if (take("n")) return '\n';
    if (take("r")) return '\r';
    if (take("t")) return '\t';
    if (take("f")) return '\f';
    if (take("v")) return '\v';
    if (take("u")) return hexadecimal(4);
    if (take("x{")) {
      const char32_t value = hexadecimal(text_.substr(at_).find('}'));
      if (!take("}")) refuse("'}'");
      return value;
    }
    if (take("x")) return hexadecimal(2);
    const bool word = !ends() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_');
    if (word) refuse("\\s, \\S, \\d, \\D, \\p{...}, \\n, \\r, \\t, \\f, \\v, \\u.... or \\x{...}");
    return next();
  }

  char32_t hexadecimal(size_t digits) {
    char32_t value = 0;
    if (digits == 0 || digits > 6) refuse("1 to 6 hexadecimal digits");
    for (size_t i = 0; i < digits; ++i) {
      const char32_t c = next(), lower = c | 0x20;
      if (c >= '0' && c <= '9') {
        value = value * 16 + (c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + (lower - 'a' + 10);
      } else {
        refuse("hexadecimal digits");
      }
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) refuse("a code point");
    return value;
  }

  void parse_set(CharSet& set) {
    if (take("^")) {
      if (ignore_case_) refuse("no set of what is left out where case is ignored");
      set.negate();
    }
    bool empty = true;
    for (; !take("]"); empty = false) {
      if (ends()) refuse("']'");
      if (text_[at_] == '[' || text_.substr(at_).starts_with("&&")) refuse("sets without sets in them");
      if (take("\\")) {
        if (escaped_categories(set)) continue;
        add_range(escaped_character(), set);
      } else {
        add_range(next(), set);
      }
    }
    if (empty) refuse("something in the set");
  }

  void add_range(char32_t first, CharSet& set) {
    const std::string_view rest = text_.substr(at_);
    char32_t last = first;
    if (rest.starts_with("-") && !rest.starts_with("-]")) {
      take("-");
      if (text_.substr(at_).starts_with("[")) refuse("the end of a range");
      last = next();
      if (last == '\\') last = escaped_character();
      if (last < first) refuse("the end of a range");
    }
    if (!ignore_case_) return set.add(first, last);
    if (last >= 0x80) refuse("ASCII where case is ignored");
    for (char32_t c = first; c <= last; ++c) {
      letter_end_ = std::string_view::npos - 1;  // joins nothing
      add_letter(c, set);
    }
  }

  Node quantified(Node node) {
    uint32_t least = 0, most = kNoLimit;
    bool counted = false;
    if (take("?")) {
      most = 1;
    } else if (take("+")) {
      least = 1;
    } else if (text_.substr(at_).starts_with("{")) {
      take("{");
      std::tie(least, most) = counts();
      counted = true;
    } else if (!take("*")) {
      return node;
    }
    const bool zero_width = node.kind == Node::Kind::LineEnd || node.kind == Node::Kind::Ahead ||
                            node.kind == Node::Kind::NotAhead || shortest(node) == 0;
    if (zero_width) refuse("something that takes a character before a quantifier");
    const bool single = node.kind == Node::Kind::Set;
    Node repeat{.kind = Node::Kind::Repeat, .least = least, .most = most};
    repeat.children.push_back(std::move(node));
    if (take("+")) {
      // Behind {1,3} it is one more quantifier, not a possessive one.
      if (counted ? least != 1 : !single) refuse("a possessive quantifier of one character");
      if (counted) repeat.most = kNoLimit;
      repeat.possessive = !counted;
    }
    if (!ends() && (text_[at_] == '?' || text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '{')) {
      refuse("one greedy or possessive quantifier");
    }
    return repeat;
  }

  std::pair<uint32_t, uint32_t> counts() {
    const auto number = [&]() -> std::optional<uint32_t> {
      std::optional<uint32_t> value;
      while (!ends() && text_[at_] >= '0' && text_[at_] <= '9') {
        value = value.value_or(0) * 10 + static_cast<uint32_t>(text_[at_++] - '0');
        if (*value > kMaxInstructions) refuse("smaller counts");
      }
      return value;
    };
    const auto least = number();
    const bool comma = take(",");
    const auto most = comma ? number() : least;
    if (!take("}") || (!least && !most)) refuse("{n}, {m,n} or {m,}");
    const std::pair<uint32_t, uint32_t> found{least.value_or(0), most.value_or(kNoLimit)};
    if (found.second == 0 || found.second < found.first) refuse("counts in ascending order");
    return found;
  }

  uint32_t place() const { return static_cast<uint32_t>(regex_.code_.size()); }
  uint32_t emit(SplitRegex::Instruction instruction) {
    if (regex_.code_.size() >= kMaxInstructions) refuse("a shorter expression");
    regex_.code_.push_back(instruction);
    return place() - 1;
  }

  void emit(const Node& node) {
    switch (node.kind) {
      case Node::Kind::Set:
        emit({SplitRegex::Kind::One, node.set});
        break;
      case Node::Kind::All:
        for (const Node& child : node.children) emit(child);
        break;
      case Node::Kind::Any:
        emit_any(node);
        break;
      case Node::Kind::Repeat:
        emit_repeat(node);
        break;
      case Node::Kind::Ahead:
        emit({SplitRegex::Kind::Ahead, node.set});
        break;
      case Node::Kind::NotAhead:
        emit({SplitRegex::Kind::NotAhead, node.set});
        break;
      case Node::Kind::LineEnd:
        emit({SplitRegex::Kind::LineEnd});
        break;
    }
  }

  void emit_any(const Node& node) {
    std::vector<uint32_t> jumps;
    for (size_t i = 0; i < node.children.size(); ++i) {
      const bool last = i + 1 == node.children.size();
      const uint32_t fork = last ? 0 : emit({SplitRegex::Kind::Fork});
      emit(node.children[i]);
      if (last) break;
      jumps.push_back(emit({SplitRegex::Kind::Jump}));
      regex_.code_[fork].target = place();
    }
    for (const uint32_t jump : jumps) regex_.code_[jump].target = place();
  }

  void emit_repeat(const Node& node) {
    const Node& inside = node.children.front();
    const bool single = inside.kind == Node::Kind::Set;
    for (uint32_t i = 0; i < node.least; ++i) emit(inside);
    if (node.most == kNoLimit && single) {
      emit({node.possessive ? SplitRegex::Kind::Skip : SplitRegex::Kind::Run, inside.set});
    } else if (node.most == kNoLimit) {
      const uint32_t fork = emit({SplitRegex::Kind::Fork});
      emit(inside);
      emit({SplitRegex::Kind::Jump, 0, fork});
      regex_.code_[fork].target = place();
      regex_.repeats_groups_ = true;
    } else if (node.possessive) {
      emit({SplitRegex::Kind::Optional, inside.set});
    } else {
      std::vector<uint32_t> forks;
      for (uint32_t i = node.least; i < node.most; ++i) {
        forks.push_back(emit({SplitRegex::Kind::Fork}));
        emit(inside);
      }
      for (const uint32_t fork : forks) regex_.code_[fork].target = place();
    }
  }

  std::string_view text_;
  SplitRegex& regex_;
  const SplitRegex::Fail& fail_;
  size_t at_ = 0;
  bool ignore_case_ = false;
  char32_t before_ = 0;    // the last letter, in lower case, if case is ignored
  size_t letter_end_ = 0;  // and where the expression continues behind it
};

SplitRegex::SplitRegex(std::string_view expression, const Fail& fail) : expression_(expression) {
  SplitRegexCompiler(expression_, *this, fail).compile();
}

}  // namespace snug
