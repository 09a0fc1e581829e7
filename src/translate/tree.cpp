#include "translate/tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "format/json.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr size_t kMaxLevels = 64, kMaxValues = 100'000;

void require_text(const std::string& text, const std::string& source) {
  if (text.size() > kMaxTranslatedFile)
    user_error("{}: found {} bytes, expected at most {} of a file of options", source, text.size(), kMaxTranslatedFile);
  if (const std::optional<size_t> at = find_invalid_utf8(text))
    user_error("{}: byte {} belongs to no character of UTF-8, which files of options are written in", source, *at);
  const auto control = std::ranges::find_if(
      text, [](char c) { return ((c >= 0 && c < ' ') || c == 0x7f) && c != '\n' && c != '\r' && c != '\t'; });
  if (control != text.end())
    user_error("{}: byte {} is a control character, which no file of options has", source, control - text.begin());
}

// Makes a tree of the parser's events, so that depth and number are bounded while it is made and no alias multiplies
// anything.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& source) : source_(source) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    // The library does not move past a stray comma or bracket, and would make documents of it for ever.
    if (documents_ > 0 && mark.pos == last_start_) fail(mark, "this belongs to no list and no map");
    last_start_ = mark.pos;
    documents_++;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { add(mark, {}); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(mark, "found an alias, expected the value itself: write it out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    if (find_invalid_utf8(value)) fail(mark, "found an escape that makes no character of UTF-8");
    const bool quoted = tag == "!";
    const bool null =
        !quoted && (value.empty() || value == "~" || value == "null" || value == "Null" || value == "NULL");
    Tree tree;
    if (!null) tree.kind = Tree::Kind::Text, tree.text = value;
    add(mark, std::move(tree));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    open(mark, Tree::Kind::List);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    open(mark, Tree::Kind::Map);
  }
  void OnMapEnd() override { close(); }

  // Returns the only document that is not empty; null if there is none.
  Tree take() {
    std::erase_if(done_, [](const Tree& tree) { return tree.kind == Tree::Kind::Null; });
    if (done_.size() > 1) user_error("{}: found {} documents, divided by '---', expected one", source_, done_.size());
    return done_.empty() ? Tree() : std::move(done_[0]);
  }

 private:
  struct Level {
    Tree tree;
    std::string key = {};
    bool has_key = false;
    std::set<std::string> seen = {};
  };

  [[noreturn]] void fail(const YAML::Mark& mark, std::string_view what) const {
    user_error("{}, line {}: {}", source_, mark.line + 1, what);
  }

  void count(const YAML::Mark& mark) {
    if (++values_ > kMaxValues) fail(mark, fmt::format("found more than {} values", kMaxValues));
  }

  void open(const YAML::Mark& mark, Tree::Kind kind) {
    count(mark);
    if (levels_.size() >= kMaxLevels) fail(mark, fmt::format("found more than {} levels", kMaxLevels));
    if (!levels_.empty() && levels_.back().tree.kind == Tree::Kind::Map && !levels_.back().has_key)
      fail(mark, "found a list or a map as a key, expected a text");
    Tree tree;
    tree.kind = kind;
    tree.line = mark.line + 1;
    levels_.push_back({std::move(tree)});
  }

  void close() {
    Tree tree = std::move(levels_.back().tree);
    levels_.pop_back();
    attach(std::move(tree));
  }

  void add(const YAML::Mark& mark, Tree tree) {
    count(mark);
    tree.line = mark.line + 1;
    if (!levels_.empty() && levels_.back().tree.kind == Tree::Kind::Map && !levels_.back().has_key) {
      if (tree.kind != Tree::Kind::Text) fail(mark, "found nothing as a key, expected a text");
      if (!levels_.back().seen.insert(tree.text).second)
        fail(mark, fmt::format("found key '{}' twice, expected it once", tree.text));
      levels_.back().key = std::move(tree.text);
      levels_.back().has_key = true;
      return;
    }
    attach(std::move(tree));
  }

  void attach(Tree tree) {
    if (levels_.empty()) {
      done_.push_back(std::move(tree));
    } else if (Level& level = levels_.back(); level.tree.kind == Tree::Kind::Map) {
      tree.line = tree.line == 0 ? level.tree.line : tree.line;
      level.tree.entries.push_back({std::move(level.key), std::move(tree)});
      level.has_key = false;
    } else {
      level.tree.items.push_back(std::move(tree));
    }
  }

  const std::string& source_;
  std::vector<Level> levels_;
  std::vector<Tree> done_;
  size_t values_ = 0;
  int documents_ = 0, last_start_ = -1;
};

// Depth is the parser's own to bound.
Tree tree_of(const Json& json, const std::string& source, size_t& values) {
  if (++values > kMaxValues) user_error("{}: found more than {} values", source, kMaxValues);
  Tree tree;
  if (json.is_null()) return tree;
  if (json.is_array()) {
    tree.kind = Tree::Kind::List;
    for (const Json& item : json) tree.items.push_back(tree_of(item, source, values));
  } else if (json.is_object()) {
    tree.kind = Tree::Kind::Map;
    for (const auto& [key, value] : json.items()) tree.entries.push_back({key, tree_of(value, source, values)});
  } else {
    tree.kind = Tree::Kind::Text;
    tree.text = json.is_string() ? json.get<std::string>() : json.dump();
  }
  return tree;
}

}  // namespace

const Tree* Tree::find(std::string_view key) const {
  const auto found = std::ranges::find(entries, key, &TreeEntry::key);
  return found == entries.end() ? nullptr : &found->value;
}

Tree read_yaml(const std::string& text, const std::string& source) {
  require_text(text, source);
  TreeBuilder builder(source);
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    user_error("{}: not readable as YAML: {}", source, error.what());
  }
  return builder.take();
}

Tree read_json(const std::string& text, const std::string& source) {
  require_text(text, source);
  size_t values = 0;
  return tree_of(parse_json(text, source), source, values);
}

}  // namespace snug
