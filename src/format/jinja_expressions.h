// Reads the expressions of a chat template from tokens.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "format/jinja_ast.h"
#include "format/jinja_lexer.h"

namespace snug::jinja {

// Parses by Jinja's grammar, so that precedences are Jinja's. Throws Failure for what the grammar does not have.
class ExpressionParser {
 public:
  // `line` is set to where it reads. Tokens must outlive it.
  ExpressionParser(Program& program, std::span<const Token> tokens, uint32_t& line)
      : program_(program), tokens_(tokens), line_(line) {}

 protected:
  // Counts how deep brackets and blocks lie within each other, and refuses too many levels.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool at_end() const { return current().type == Token::Type::End; }
  const Token& take();
  bool is_name(std::string_view name) const { return current().type == Token::Type::Name && current().text == name; }
  bool is_operator(std::string_view text) const {
    return current().type == Token::Type::Operator && current().text == text;
  }
  bool skip_if(Token::Type type);
  bool skip_word(std::string_view name);
  bool skip_operator(std::string_view text);
  void expect(Token::Type type, std::string_view text);
  void expect_word(std::string_view name);
  void expect_operator(std::string_view text);
  std::string expect_name(std::string_view what);
  [[noreturn]] void unexpected(std::string_view expected) const;

  ExprPtr expression(bool with_conditional = true);
  // Reads an expression; several with commas between them are a tuple. `end` is a word that ends it.
  ExprPtr tuple(bool with_conditional = true, std::string_view end = "", bool in_brackets = false);
  // Reads what may be assigned to: names, with `namespaces` attributes of namespaces, tuples of both.
  ExprPtr target(bool namespaces, std::string_view end);
  ExprPtr name_target();
  // Reads filters of `subject` one after another. The first may stand without its '|'.
  ExprPtr filters(ExprPtr subject, bool first_is_named);

 private:
  ExprPtr make(Op op, ExprPtr a = nullptr, ExprPtr b = nullptr);
  void add(Expr& expr, ExprPtr part);
  ExprPtr constant(Value value);
  bool ends_tuple(std::string_view end) const;

  ExprPtr conditional();
  ExprPtr either();
  ExprPtr both();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters = true);
  ExprPtr primary();
  ExprPtr postfix(ExprPtr of);
  ExprPtr filters_and_tests(ExprPtr of);
  ExprPtr test(ExprPtr of);
  ExprPtr subscript(ExprPtr of);
  ExprPtr subscript_item(ExprPtr of);
  ExprPtr call(ExprPtr callee);
  ExprPtr single_target(bool namespaces);
  void arguments(Expr& call);
  ExprPtr list();
  ExprPtr dict();

  Program& program_;
  std::span<const Token> tokens_;
  uint32_t& line_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace snug::jinja
