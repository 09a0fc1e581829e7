#include "translate/shell.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace snug {
namespace {

constexpr size_t kMaxExpanded = 1 << 20;

struct Variable {
  std::vector<ShellWord> words;  // one, or those of an array
  bool exported = false;
};

bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Returns the length of the name that a text begins with.
size_t name_length(std::string_view text) {
  if (text.empty() || !starts_name(text[0])) return 0;
  size_t length = 1;
  while (length < text.size() && in_name(text[length])) length++;
  return length;
}

struct HereDocument {
  std::string end;
  bool literal = false, strip_tabs = false;
};

class ScriptReader {
 public:
  ScriptReader(const std::string& text, const std::string& source) : text_(text), source_(source) {}

  ShellScript read() {
    while (at_ < text_.size()) read_token();
    end_command();
    return std::move(script_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { user_error("{}, line {}: {}", source_, line_, what); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool next_is(std::string_view what) const { return std::string_view(text_).substr(at_).starts_with(what); }
  void advance(size_t count = 1) {
    for (; count > 0 && at_ < text_.size(); count--) line_ += text_[at_++] == '\n';
  }

  void read_token() {
    const char c = peek();
    if (c == '\n') {
      advance();
      read_here_documents();
      end_command();
    } else if (blank(c)) {
      advance();
    } else if (next_is("\\\n") || next_is("\\\r\n")) {
      advance(next_is("\\\n") ? 2 : 3);
    } else if (c == '#') {
      while (at_ < text_.size() && peek() != '\n') advance();
    } else if (c == ';' || c == '|' || (c == '&' && peek(1) != '>')) {
      advance();
      end_command();
    } else if (c == '(' || c == ')') {
      advance();
      end_command();
    } else if (redirects()) {
      read_redirection();
    } else {
      if (words_.empty() && assigned_.empty()) command_line_ = line_;
      read_word_or_assignment();
    }
  }

  // ---- Words --------------------------------------------------------------------------------------------------------

  // Holds the words that a piece of the script becomes: unquoted expansions may make several of one, or none.
  struct Fields {
    std::vector<ShellWord> done;
    ShellWord open;
    bool started = false;

    void put(char c) { open.text += c, started = true; }
    void split() {
      if (started) done.push_back(std::move(open));
      open = {}, started = false;
    }
  };

  void grow(size_t bytes) {
    if (expanded_ += bytes; expanded_ > kMaxExpanded)
      fail(fmt::format("found more than {} bytes after expansion", kMaxExpanded));
  }

  void expand_into(Fields& fields, const std::vector<ShellWord>& words, bool quoted) {
    for (size_t i = 0; i < words.size(); i++) {
      if (i > 0) fields.split();
      grow(words[i].text.size() + 1);
      if (quoted) fields.started = true;
      const size_t first = fields.done.size();
      for (const char c : words[i].text) {
        if (!quoted && (blank(c) || c == '\n'))
          fields.split();
        else
          fields.put(c);
      }
      if (words[i].unknown.empty()) continue;
      for (size_t k = first; k < fields.done.size(); k++) note_unknown(fields.done[k]);
      note_unknown(fields.open);
    }
  }

  // Notes what a shell would expand in a word that is cut from an unknown text.
  static void note_unknown(ShellWord& word) {
    if (word.unknown.empty() && word.text.find_first_of("$`") != std::string::npos) word.unknown = word.text;
  }

  void put_unknown(Fields& fields, const std::string& what) {
    grow(what.size());
    fields.open.text += what;
    fields.started = true;
    if (fields.open.unknown.empty()) fields.open.unknown = what;
  }

  // Skips from an opening bracket to behind the one that closes it, whatever lies between.
  std::string skip_bracket(size_t begin, char open, char close) {
    int depth = 0;
    while (at_ < text_.size()) {
      if (peek() == '\\') {
        advance(2);
        continue;
      }
      if (peek() == open) depth++;
      if (peek() == close && --depth == 0) {
        advance();
        return text_.substr(begin, at_ - begin);
      }
      advance();
    }
    fail(fmt::format("found no '{}' for '{}'", close, open));
  }

  // Expands what stands behind a dollar.
  void read_dollar(Fields& fields, bool quoted) {
    const size_t begin = at_;
    advance();
    if (peek() == '(') {
      put_unknown(fields, skip_bracket(begin, '(', ')'));
    } else if (peek() == '{') {
      expand_braces(fields, skip_bracket(begin, '{', '}'), quoted);
    } else if (const size_t length = name_length(std::string_view(text_).substr(at_)); length > 0) {
      const std::string name = text_.substr(at_, length);
      advance(length);
      expand_name(fields, name, "$" + name, quoted);
    } else if (std::string_view("0123456789@*#?!-$").find(peek()) != std::string_view::npos && at_ < text_.size()) {
      advance();
      put_unknown(fields, text_.substr(begin, 2));
    } else {
      fields.put('$');
    }
  }

  void expand_name(Fields& fields, const std::string& name, const std::string& whole, bool quoted) {
    const auto found = variables_.find(name);
    if (found == variables_.end())
      put_unknown(fields, whole);
    else
      expand_into(fields, found->second.words, quoted);
  }

  // Expands "${NAME}", "${NAME[@]}" and "${NAME:-text}".
  void expand_braces(Fields& fields, const std::string& whole, bool quoted) {
    const std::string inner = whole.substr(2, whole.size() - 3);
    const size_t length = name_length(inner);
    const std::string name = inner.substr(0, length), rest = inner.substr(length);
    if (length > 0 && (rest.empty() || rest == "[@]" || rest == "[*]")) {
      expand_name(fields, name, whole, quoted);
    } else if (length > 0 && (rest.starts_with(":-") || rest.starts_with(":=") || rest.starts_with("-"))) {
      const std::string fallback = rest.substr(rest[0] == ':' ? 2 : 1);
      if (variables_.contains(name))
        expand_name(fields, name, whole, quoted);
      else if (fallback.find_first_of("$`\\\"'") != std::string::npos)
        put_unknown(fields, whole);
      else
        expand_into(fields, {{fallback, ""}}, quoted);
    } else {
      put_unknown(fields, whole);
    }
  }

  void read_backticks(Fields& fields) {
    const size_t begin = at_;
    advance();
    while (at_ < text_.size() && peek() != '`') advance(peek() == '\\' ? 2 : 1);
    if (at_ >= text_.size()) fail("found no end of '`'");
    advance();
    put_unknown(fields, text_.substr(begin, at_ - begin));
  }

  void read_double_quotes(Fields& fields) {
    advance();
    fields.started = true;
    while (peek() != '"') {
      if (at_ >= text_.size()) fail("found no end of '\"'");
      if (next_is("\\\n")) {
        advance(2);
      } else if (peek() == '\\' && std::string_view("$`\"\\").find(peek(1)) != std::string_view::npos) {
        fields.put(peek(1));
        advance(2);
      } else if (peek() == '$') {
        read_dollar(fields, true);
      } else if (peek() == '`') {
        read_backticks(fields);
      } else {
        fields.put(peek());
        advance();
      }
    }
    advance();
  }

  void read_single_quotes(Fields& fields) {
    advance();
    fields.started = true;
    while (peek() != '\'') {
      if (at_ >= text_.size()) fail("found no end of \"'\"");
      fields.put(peek());
      advance();
    }
    advance();
  }

  // Reads $'...', in which a backslash and a letter stand for a character.
  void read_escaped_quotes(Fields& fields) {
    advance(2);
    fields.started = true;
    while (peek() != '\'') {
      if (at_ >= text_.size()) fail("found no end of \"$'\"");
      if (peek() == '\\') {
        advance();
        const char c = peek();
        fields.put(c == 'n' ? '\n' : c == 't' ? '\t' : c);
      } else {
        fields.put(peek());
      }
      advance();
    }
    advance();
  }

  bool ends_word() const {
    const char c = peek();
    return at_ >= text_.size() || blank(c) || c == '\n' ||
           std::string_view(";|&()<>").find(c) != std::string_view::npos;
  }

  std::vector<ShellWord> read_word() {
    Fields fields;
    while (!ends_word()) {
      const char c = peek();
      if (next_is("\\\n") || next_is("\\\r\n")) {
        advance(next_is("\\\n") ? 2 : 3);
      } else if (c == '\\') {
        advance();
        if (at_ < text_.size()) fields.put(peek());
        advance();
      } else if (c == '\'') {
        read_single_quotes(fields);
      } else if (c == '"') {
        read_double_quotes(fields);
      } else if (next_is("$'")) {
        read_escaped_quotes(fields);
      } else if (c == '$') {
        read_dollar(fields, false);
      } else if (c == '`') {
        read_backticks(fields);
      } else {
        fields.put(c);
        advance();
      }
    }
    fields.split();
    return std::move(fields.done);
  }

  // ---- Commands -----------------------------------------------------------------------------------------------------

  void read_word_or_assignment() {
    const std::string_view rest = std::string_view(text_).substr(at_);
    const size_t length = name_length(rest);
    const bool adds = rest.substr(length).starts_with("+=");
    const bool sets = length > 0 && (adds || rest.substr(length).starts_with("="));
    const bool declares = words_.size() == 1 && kDeclaring.contains(words_[0].text);
    if (sets && (words_.empty() || declares)) {
      const std::string name(rest.substr(0, length));
      advance(length + (adds ? 2 : 1));
      read_assignment(name, adds);
      return;
    }
    for (ShellWord& word : read_word()) words_.push_back(std::move(word));
  }

  void read_assignment(const std::string& name, bool adds) {
    std::vector<ShellWord> value;
    const bool array = peek() == '(';
    if (array) {
      advance();
      while (peek() != ')') {
        if (at_ >= text_.size()) fail("found no ')' for '('");
        if (peek() == '#') {
          while (at_ < text_.size() && peek() != '\n') advance();
        } else if (blank(peek()) || peek() == '\n' ||
                   std::string_view(";|&(<>").find(peek()) != std::string_view::npos) {
          advance();
        } else if (next_is("\\\n")) {
          advance(2);
        } else {
          for (ShellWord& word : read_word()) value.push_back(std::move(word));
        }
      }
      advance();
    } else {
      // A shell does not cut the value of an assignment into words.
      ShellWord all;
      for (const ShellWord& word : read_word()) {
        if (!all.text.empty()) all.text += ' ';
        all.text += word.text;
        if (all.unknown.empty()) all.unknown = word.unknown;
      }
      value.push_back(std::move(all));
    }
    assigned_.push_back({name, std::move(value), adds, array});
  }

  void assign(const std::string& name, std::vector<ShellWord> value, bool adds, bool array, bool exported) {
    Variable& variable = variables_[name];
    if (depth_ > 0) {
      value = {{"$" + name, "$" + name}};
    } else if (adds && array) {
      value.insert(value.begin(), variable.words.begin(), variable.words.end());
    } else if (adds && !variable.words.empty()) {
      ShellWord all = variable.words[0];
      all.text += value[0].text;
      if (all.unknown.empty()) all.unknown = value[0].unknown;
      value = {all};
    }
    for (const ShellWord& word : value) grow(word.text.size() + 1);
    variable.words = std::move(value);
    variable.exported = variable.exported || exported;
  }

  void end_command() {
    while (!words_.empty() && kBefore.contains(words_[0].text)) {
      depth_ += words_[0].text == "{";
      words_.erase(words_.begin());
    }
    const std::string first = words_.empty() ? "" : words_[0].text;
    if (kOpening.contains(first)) depth_++;
    if (kClosing.contains(first)) depth_ = std::max(0, depth_ - 1);
    if (first == "for" && words_.size() > 1 && name_length(words_[1].text) == words_[1].text.size())
      variables_[words_[1].text] = {{{"$" + words_[1].text, "$" + words_[1].text}}, false};
    if (words_.empty() || kDeclaring.contains(first)) {
      for (Assignment& one : assigned_) assign(one.name, std::move(one.value), one.adds, one.array, first == "export");
      if (first == "export")
        for (size_t i = 1; i < words_.size(); i++)
          if (const auto found = variables_.find(words_[i].text); found != variables_.end())
            found->second.exported = true;
    } else if (!kOpening.contains(first) && !kClosing.contains(first)) {
      ShellCommand command{std::move(words_), {}, command_line_};
      for (const auto& [name, variable] : variables_)
        if (variable.exported && !variable.words.empty()) command.environment[name] = variable.words[0];
      for (Assignment& one : assigned_)
        if (!one.value.empty()) command.environment[one.name] = std::move(one.value[0]);
      for (const auto& [name, word] : command.environment) grow(name.size() + word.text.size());
      script_.commands.push_back(std::move(command));
    }
    words_.clear();
    assigned_.clear();
    redirected_to_.clear();
  }

  // ---- Redirections and here-documents
  // -------------------------------------------------------------------------------

  bool redirects() const {
    size_t ahead = 0;
    while (std::isdigit(static_cast<unsigned char>(peek(ahead)))) ahead++;
    return peek(ahead) == '<' || peek(ahead) == '>' || (peek() == '&' && peek(1) == '>');
  }

  void read_redirection() {
    while (std::isdigit(static_cast<unsigned char>(peek()))) advance();
    if (next_is("<<<")) {
      advance(3);
      skip_blanks();
      read_word();
    } else if (next_is("<<")) {
      advance(2);
      HereDocument here;
      if (peek() == '-') here.strip_tabs = true, advance();
      skip_blanks();
      here.literal = peek() == '\'' || peek() == '"' || peek() == '\\';
      for (const ShellWord& word : read_word()) here.end += word.text;
      here_.push_back(std::move(here));
    } else {
      const bool out = peek() == '>' || peek() == '&';
      while (peek() == '<' || peek() == '>' || peek() == '&' || peek() == '|') advance();
      skip_blanks();
      const std::vector<ShellWord> target = read_word();
      if (out && target.size() == 1 && target[0].unknown.empty()) redirected_to_ = target[0].text;
    }
  }

  void skip_blanks() {
    while (blank(peek())) advance();
  }

  std::string line_of_text() {
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    std::string line = text_.substr(at_, end - at_);
    if (line.ends_with('\r')) line.pop_back();
    advance(end - at_ + 1);
    return line;
  }

  void read_here_documents() {
    for (const HereDocument& here : std::exchange(here_, {})) {
      std::string body;
      for (bool ended = false; !ended;) {
        if (at_ >= text_.size()) fail(fmt::format("found no '{}', with which a here-document ends", here.end));
        std::string line = line_of_text();
        if (here.strip_tabs) line.erase(0, std::min(line.find_first_not_of('\t'), line.size()));
        ended = line == here.end;
        if (!ended) body += line + "\n";
      }
      use_here_document(here.literal ? ShellWord{body, ""} : expanded(body));
    }
  }

  // Expands the variables of a here-document, as within double quotes, where quotes have no meaning.
  ShellWord expanded(const std::string& body) {
    ScriptReader inner(body, source_);
    inner.variables_ = variables_;
    inner.line_ = line_;
    inner.expanded_ = expanded_;
    Fields fields;
    while (inner.at_ < body.size()) {
      const char c = inner.peek();
      if (inner.next_is("\\\n")) {
        inner.advance(2);
      } else if (c == '\\' && std::string_view("$`\\").find(inner.peek(1)) != std::string_view::npos) {
        fields.put(inner.peek(1));
        inner.advance(2);
      } else if (c == '$') {
        inner.read_dollar(fields, true);
      } else {
        fields.put(c);
        inner.advance();
      }
    }
    expanded_ = inner.expanded_;
    // An array in it makes words, which are one text here.
    fields.split();
    ShellWord all;
    for (const ShellWord& word : fields.done) {
      all.text += word.text;
      if (all.unknown.empty()) all.unknown = word.unknown;
    }
    return all;
  }

  void use_here_document(ShellWord body) {
    const std::string first = words_.empty() ? "" : words_[0].text;
    if (first == "read" && words_.size() > 1) {
      assign(words_.back().text, {std::move(body)}, false, false, false);
      words_.clear();
    } else if (first == "cat" && !redirected_to_.empty() && body.unknown.empty()) {
      grow(body.text.size());
      script_.files[redirected_to_] = std::move(body.text);
    }
  }

  struct Assignment {
    std::string name;
    std::vector<ShellWord> value;
    bool adds, array;
  };

  inline static const std::set<std::string> kOpening{"if", "for", "while", "until", "case", "select", "function"},
      kClosing{"fi", "done", "esac", "}"}, kBefore{"then", "else", "do", "!", "{", "time"},
      kDeclaring{"export", "declare", "local", "readonly", "typeset"};

  const std::string& text_;
  const std::string& source_;
  size_t at_ = 0, expanded_ = 0;
  int64_t line_ = 1, command_line_ = 1;
  int depth_ = 0;
  std::map<std::string, Variable> variables_;
  std::vector<ShellWord> words_;
  std::vector<Assignment> assigned_;
  std::vector<HereDocument> here_;
  std::string redirected_to_;
  ShellScript script_;
};

}  // namespace

ShellScript read_script(const std::string& text, const std::string& source) {
  return ScriptReader(text, source).read();
}

}  // namespace snug
