#include "format/jinja_parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "base/error.h"
#include "format/jinja_builtins.h"
#include "format/jinja_expressions.h"

namespace snug::jinja {
namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;

// Parses statements; expressions are its base.
class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block all() {
    Block out = block({});
    if (!at_end()) unexpected("text or a tag");
    return out;
  }

 private:
  // Reads up to a tag that one of `ends` names, of which "{%" has been read, or to the end of the template.
  Block block(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    Block out;
    for (;;) {
      const uint32_t line = current().line;
      if (current().type == Token::Type::Text) {
        out.push_back({.action = Action::Text, .line = line, .text = Text(take().text)});
      } else if (skip_if(Token::Type::PrintBegin)) {
        out.push_back({.action = Action::Print, .line = line, .value = tuple()});
        expect(Token::Type::PrintEnd, "}}");
      } else if (skip_if(Token::Type::TagBegin)) {
        if (std::ranges::any_of(ends, [&](std::string_view end) { return is_name(end); })) return out;
        out.push_back(statement());
      } else {
        if (ends.size() > 0) unexpected(fmt::format("'{{% {} %}}'", *(ends.end() - 1)));
        return out;
      }
    }
  }

  void end_tag() { expect(Token::Type::TagEnd, "%}"); }

  // Reads the body of a statement whose tag ends here, up to and with its end.
  Block body(std::string_view end) {
    end_tag();
    Block out = block({end});
    take();
    end_tag();
    return out;
  }

  Statement statement() {
    const uint32_t line = current().line;
    const std::string name = expect_name("the name of a tag");
    Statement out{.line = line};
    if (name == "if") return if_statement(line);
    if (name == "for") return for_statement(line);
    if (name == "set") return set_statement(line);
    if (name == "macro") return macro(line);
    if (name == "call") return call_block(line);
    if (name == "with") return with_block(line);
    if (name == "filter") {
      out.action = Action::FilterBlock;
      out.value = filters(nullptr, /*first_is_named=*/true);
      out.body = body("endfilter");
    } else if (name == "generation") {
      out.action = Action::Generation;
      out.body = body("endgeneration");
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) fail("found '{}' outside of a loop", name);
      out.action = name == "break" ? Action::Break : Action::Continue;
      end_tag();
    } else {
      fail(
          "found the tag '{}', expected one that chat templates may use: if, for, set, macro, call, filter, with, "
          "generation, break, continue, raw",
          name);
    }
    return out;
  }

  Statement if_statement(uint32_t line) {
    Statement out{.action = Action::If, .line = line};
    for (;;) {
      ExprPtr condition = tuple(/*with_conditional=*/false);
      end_tag();
      Block then = block({"elif", "else", "endif"});
      out.branches.emplace_back(std::move(condition), std::move(then));
      const std::string next = take().text;
      if (next == "elif") continue;
      if (next == "else") {
        out.otherwise = body("endif");
      } else {
        end_tag();
      }
      return out;
    }
  }

  Statement for_statement(uint32_t line) {
    Statement out{.action = Action::For, .line = line};
    out.target = target(/*namespaces=*/false, "in");
    expect_word("in");
    out.value = tuple(/*with_conditional=*/false, "recursive");
    if (skip_word("if")) out.condition = expression();
    if (is_name("recursive")) fail("found a recursive loop, which chat templates may not use");
    end_tag();
    ++loops_;
    out.body = block({"else", "endfor"});
    --loops_;
    if (take().text == "else") {
      out.otherwise = body("endfor");
    } else {
      end_tag();
    }
    return out;
  }

  Statement set_statement(uint32_t line) {
    Statement out{.action = Action::Set, .line = line};
    out.target = target(/*namespaces=*/true, "");
    if (skip_operator("=")) {
      out.value = tuple();
      end_tag();
      return out;
    }
    out.action = Action::SetBlock;
    if (is_operator("|")) out.value = filters(nullptr, /*first_is_named=*/false);
    out.body = body("endset");
    return out;
  }

  void signature(Function& function) {
    expect_operator("(");
    while (!is_operator(")")) {
      if (!function.parameters.empty()) expect_operator(",");
      if (is_operator(")")) break;
      function.parameters.push_back(name_target());
      if (skip_operator("=")) {
        function.defaults.push_back(expression());
      } else if (!function.defaults.empty()) {
        fail("found parameter '{}' without a default behind one that has one", function.parameters.back()->name);
      }
    }
    expect_operator(")");
  }

  Block function_body(std::string_view end) {
    const int outer = std::exchange(loops_, 0);
    Block out = body(end);
    loops_ = outer;
    return out;
  }

  Statement macro(uint32_t line) {
    Statement out{.action = Action::Macro, .line = line};
    out.function = std::make_unique<Function>();
    out.target = name_target();
    out.function->name = out.target->name;
    signature(*out.function);
    out.function->body = function_body("endmacro");
    return out;
  }

  Statement call_block(uint32_t line) {
    Statement out{.action = Action::CallBlock, .line = line};
    out.function = std::make_unique<Function>();
    out.function->name = "caller";
    if (is_operator("(")) signature(*out.function);
    out.value = expression();
    if (out.value->op != Op::Call) fail("found a call block without a call");
    out.function->body = function_body("endcall");
    return out;
  }

  Statement with_block(uint32_t line) {
    Statement out{.action = Action::With, .line = line};
    while (current().type != Token::Type::TagEnd) {
      if (!out.bindings.empty()) expect_operator(",");
      ExprPtr name = target(/*namespaces=*/false, "");
      expect_operator("=");
      out.bindings.emplace_back(std::move(name), expression());
    }
    out.body = body("endwith");
    return out;
  }

  int loops_ = 0;  // around this place, within the function
};

}  // namespace

std::string described(const Expr& origin) {
  switch (origin.op) {
    case Op::Name:
      return fmt::format("'{}', which is", origin.name);
    case Op::Attribute:
      return fmt::format("attribute '{}', which is", origin.name);
    case Op::Item:
      return origin.parts[1]->constant.is(Kind::String)
                 ? fmt::format("key '{}', which is", view_of(origin.parts[1]->constant))
                 : "an item that is";
    case Op::Conditional:
      return "a value without 'else' that is";
    default:
      return "a value that is";
  }
}

Value make_constant(Program& program, Text text) {
  auto rep = std::make_unique<StringRep>();
  rep->text = std::move(text);
  rep->constant = true;
  Value v(Kind::String, rep.get());
  program.constants.push_back(std::move(rep));
  return v;
}

std::shared_ptr<const Program> parse_program(std::string_view text, std::string_view source) {
  auto program = std::make_shared<Program>();
  uint32_t line = 1;
  try {
    if (text.size() > kMaxBytes) fail("found {} bytes, expected at most {}", text.size(), kMaxBytes);
    const std::vector<Token> tokens = tokens_of(text, line);
    Parser parser(*program, tokens, line);
    program->root.body = parser.all();
    resolve_names(*program);
  } catch (const Failure& failure) {
    user_error("{}, line {}: {}", source, line, failure.what());
  }
  return program;
}

}  // namespace snug::jinja
