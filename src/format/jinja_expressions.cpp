#include "format/jinja_expressions.h"

#include <algorithm>
#include <array>
#include <utility>

#include "format/jinja_builtins.h"

namespace snug::jinja {
namespace {

constexpr int kMaxNesting = 120;
constexpr uint16_t kMaxHeight = 400;

struct BinaryOperator {
  std::string_view text;
  Op op;
};

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser_.nesting_ >= kMaxNesting) fail("found more than {} brackets or blocks within each other", kMaxNesting);
  ++parser_.nesting_;
}

const Token& ExpressionParser::take() {
  const Token& token = current();
  line_ = token.line;
  if (!at_end()) ++at_;
  return token;
}

bool ExpressionParser::skip_if(Token::Type type) {
  if (current().type != type) return false;
  take();
  return true;
}

bool ExpressionParser::skip_word(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  take();
  return true;
}

void ExpressionParser::unexpected(std::string_view expected) const {
  line_ = current().line;
  fail("found {}, expected {}", described(current()), expected);
}

void ExpressionParser::expect(Token::Type type, std::string_view text) {
  if (!skip_if(type)) unexpected(fmt::format("'{}'", text));
}

void ExpressionParser::expect_word(std::string_view name) {
  if (!skip_word(name)) unexpected(fmt::format("'{}'", name));
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) unexpected(fmt::format("'{}'", text));
}

std::string ExpressionParser::expect_name(std::string_view what) {
  if (current().type != Token::Type::Name) unexpected(what);
  return take().text;
}

void ExpressionParser::add(Expr& expr, ExprPtr part) {
  if (part) {
    if (part->height >= kMaxHeight) fail("found an expression of more than {} levels", kMaxHeight);
    expr.height = std::max<uint16_t>(expr.height, static_cast<uint16_t>(part->height + 1));
  }
  expr.parts.push_back(std::move(part));
}

ExprPtr ExpressionParser::make(Op op, ExprPtr a, ExprPtr b) {
  auto expr = std::make_unique<Expr>();
  expr->op = op;
  expr->line = line_;
  if (a) add(*expr, std::move(a));
  if (b) add(*expr, std::move(b));
  return expr;
}

ExprPtr ExpressionParser::constant(Value value) {
  ExprPtr out = make(Op::Constant);
  out->constant = std::move(value);
  return out;
}

ExprPtr ExpressionParser::expression(bool with_conditional) {
  const Nesting nesting(*this);
  return with_conditional ? conditional() : either();
}

ExprPtr ExpressionParser::conditional() {
  ExprPtr value = either();
  while (skip_word("if")) {
    ExprPtr out = make(Op::Conditional, either());
    add(*out, std::move(value));
    add(*out, skip_word("else") ? expression() : nullptr);
    value = std::move(out);
  }
  return value;
}

ExprPtr ExpressionParser::either() {
  ExprPtr left = both();
  while (skip_word("or")) left = make(Op::Or, std::move(left), both());
  return left;
}

ExprPtr ExpressionParser::both() {
  ExprPtr left = negation();
  while (skip_word("and")) left = make(Op::And, std::move(left), negation());
  return left;
}

ExprPtr ExpressionParser::negation() {
  const Nesting nesting(*this);
  if (is_name("not") && !(next().type == Token::Type::Name && next().text == "in")) {
    take();
    return make(Op::Not, negation());
  }
  return comparison();
}

ExprPtr ExpressionParser::comparison() {
  constexpr std::array<std::pair<std::string_view, Comparison>, 6> kComparisons = {{{"==", Comparison::Equal},
                                                                                    {"!=", Comparison::NotEqual},
                                                                                    {"<", Comparison::Less},
                                                                                    {"<=", Comparison::LessEqual},
                                                                                    {">", Comparison::Greater},
                                                                                    {">=", Comparison::GreaterEqual}}};
  ExprPtr first = sum();
  ExprPtr out;
  for (;;) {
    Comparison which = Comparison::In;
    const auto* const found = std::ranges::find_if(kComparisons, [&](const auto& c) { return is_operator(c.first); });
    if (found != kComparisons.end()) {
      which = found->second;
    } else if (is_name("not") && next().type == Token::Type::Name && next().text == "in") {
      take();
      which = Comparison::NotIn;
    } else if (!is_name("in")) {
      return out ? std::move(out) : std::move(first);
    }
    take();
    if (!out) out = make(Op::Compare, std::move(first));
    out->comparisons.push_back(which);
    add(*out, sum());
  }
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concatenation();
  while (is_operator("+") || is_operator("-")) {
    const Op op = take().text == "+" ? Op::Add : Op::Subtract;
    left = make(op, std::move(left), concatenation());
  }
  return left;
}

ExprPtr ExpressionParser::concatenation() {
  ExprPtr first = product();
  if (!is_operator("~")) return first;
  ExprPtr out = make(Op::Concat, std::move(first));
  while (skip_operator("~")) add(*out, product());
  return out;
}

ExprPtr ExpressionParser::product() {
  constexpr std::array<BinaryOperator, 4> kOperators = {
      {{"*", Op::Multiply}, {"/", Op::Divide}, {"//", Op::FloorDivide}, {"%", Op::Modulo}}};
  ExprPtr left = power();
  for (;;) {
    const auto* const found = std::ranges::find_if(kOperators, [&](const auto& o) { return is_operator(o.text); });
    if (found == kOperators.end()) return left;
    take();
    left = make(found->op, std::move(left), power());
  }
}

ExprPtr ExpressionParser::power() {
  ExprPtr left = unary();
  while (skip_operator("**")) left = make(Op::Power, std::move(left), unary());
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const Nesting nesting(*this);
  ExprPtr out;
  if (is_operator("-") || is_operator("+")) {
    const Op op = take().text == "-" ? Op::Negative : Op::Positive;
    out = make(op, unary(/*with_filters=*/false));
  } else {
    out = primary();
  }
  out = postfix(std::move(out));
  return with_filters ? filters_and_tests(std::move(out)) : std::move(out);
}

ExprPtr ExpressionParser::primary() {
  const Token& token = current();
  switch (token.type) {
    case Token::Type::Name: {
      take();
      if (token.text == "true" || token.text == "True") return constant(Value(true));
      if (token.text == "false" || token.text == "False") return constant(Value(false));
      if (token.text == "none" || token.text == "None") return constant(Value::none());
      ExprPtr out = make(Op::Name);
      out->name = token.text;
      return out;
    }
    case Token::Type::String: {
      std::string text = take().text;
      while (current().type == Token::Type::String) text += take().text;
      return constant(make_constant(program_, Text(std::move(text))));
    }
    case Token::Type::Integer:
      return constant(Value(take().integer));
    case Token::Type::Float:
      return constant(Value(take().real));
    default:
      break;
  }
  if (is_operator("[")) return list();
  if (is_operator("{")) return dict();
  if (!skip_operator("(")) unexpected("an expression");
  ExprPtr out = tuple(/*with_conditional=*/true, "", /*in_brackets=*/true);
  expect_operator(")");
  return out;
}

bool ExpressionParser::ends_tuple(std::string_view end) const {
  const Token::Type type = current().type;
  if (type == Token::Type::PrintEnd || type == Token::Type::TagEnd || is_operator(")")) return true;
  return !end.empty() && is_name(end);
}

ExprPtr ExpressionParser::tuple(bool with_conditional, std::string_view end, bool in_brackets) {
  ExprPtr out;
  ExprPtr first;
  for (;;) {
    if (ends_tuple(end)) break;
    ExprPtr item = expression(with_conditional);
    if (out) {
      add(*out, std::move(item));
    } else {
      first = std::move(item);
    }
    if (!is_operator(",")) break;
    if (!out) out = make(Op::Tuple, std::move(first));
    take();
  }
  if (out) return out;
  if (first) return first;
  if (!in_brackets) unexpected("an expression");
  return make(Op::Tuple);
}

ExprPtr ExpressionParser::name_target() {
  ExprPtr out = make(Op::Name);
  out->name = expect_name("a name");
  constexpr std::array<std::string_view, 6> kReserved = {"true", "True", "false", "False", "none", "None"};
  if (std::ranges::find(kReserved, out->name) != kReserved.end()) fail("found '{}' assigned to", out->name);
  return out;
}

ExprPtr ExpressionParser::single_target(bool namespaces) {
  if (skip_operator("(")) {
    ExprPtr out = target(namespaces, "");
    expect_operator(")");
    return out;
  }
  ExprPtr out = name_target();
  if (!namespaces || !skip_operator(".")) return out;
  out->op = Op::NamespaceName;
  out->attribute = expect_name("the name of an attribute");
  return out;
}

ExprPtr ExpressionParser::target(bool namespaces, std::string_view end) {
  const Nesting nesting(*this);
  ExprPtr out = single_target(namespaces);
  if (!is_operator(",")) return out;
  out = make(Op::Tuple, std::move(out));
  while (skip_operator(",")) {
    if (ends_tuple(end) || is_operator("=")) break;
    add(*out, single_target(namespaces));
  }
  return out;
}

ExprPtr ExpressionParser::list() {
  take();
  ExprPtr out = make(Op::List);
  while (!is_operator("]")) {
    if (!out->parts.empty()) expect_operator(",");
    if (is_operator("]")) break;
    add(*out, expression());
  }
  take();
  return out;
}

ExprPtr ExpressionParser::dict() {
  take();
  ExprPtr out = make(Op::Dict);
  while (!is_operator("}")) {
    if (!out->parts.empty()) expect_operator(",");
    if (is_operator("}")) break;
    add(*out, expression());
    expect_operator(":");
    add(*out, expression());
  }
  take();
  return out;
}

ExprPtr ExpressionParser::postfix(ExprPtr of) {
  for (;;) {
    if (is_operator(".") || is_operator("[")) {
      of = subscript(std::move(of));
    } else if (is_operator("(")) {
      of = call(std::move(of));
    } else {
      return of;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr of) {
  if (take().text == "[") {
    ExprPtr out = subscript_item(std::move(of));
    expect_operator("]");
    return out;
  }
  if (current().type == Token::Type::Integer) {
    const int64_t index = take().integer;
    return make(Op::Item, std::move(of), constant(Value(index)));
  }
  ExprPtr out = make(Op::Attribute, std::move(of));
  out->name = expect_name("the name of an attribute");
  out->methods = find_methods(out->name);
  out->constant = make_constant(program_, Text(out->name));
  return out;
}

// Reads one item or slice; several items with commas between them are a tuple.
ExprPtr ExpressionParser::subscript_item(ExprPtr of) {
  ExprPtr begin = is_operator(":") ? nullptr : expression();
  if (skip_operator(":")) {
    ExprPtr slice = make(Op::Slice, std::move(of));
    add(*slice, std::move(begin));
    add(*slice, is_operator(":") || is_operator("]") ? nullptr : expression());
    add(*slice, skip_operator(":") && !is_operator("]") ? expression() : nullptr);
    return slice;
  }
  if (is_operator(",")) {
    begin = make(Op::Tuple, std::move(begin));
    while (skip_operator(",")) add(*begin, expression());
  }
  return make(Op::Item, std::move(of), std::move(begin));
}

ExprPtr ExpressionParser::call(ExprPtr callee) {
  ExprPtr out = make(Op::Call, std::move(callee));
  arguments(*out);
  return out;
}

void ExpressionParser::arguments(Expr& call) {
  expect_operator("(");
  for (bool first = true; !is_operator(")"); first = false) {
    if (!first) expect_operator(",");
    if (is_operator(")")) break;
    if (is_operator("*") || is_operator("**"))
      fail("found '{}' before an argument, which chat templates may not use", current().text);
    const bool named =
        current().type == Token::Type::Name && next().type == Token::Type::Operator && next().text == "=";
    if (named) {
      call.keys.push_back(take().text);
      take();
    } else if (!call.keys.empty()) {
      fail("found an argument without a name behind one with a name");
    }
    add(call, expression());
  }
  take();
}

ExprPtr ExpressionParser::filters(ExprPtr subject, bool first_is_named) {
  while (first_is_named || skip_operator("|")) {
    first_is_named = false;
    ExprPtr out = make(Op::Filter);
    out->name = expect_name("the name of a filter");
    while (skip_operator(".")) out->name += "." + expect_name("the name of a filter");
    out->builtin = find_filter(out->name);
    add(*out, std::move(subject));
    if (is_operator("(")) arguments(*out);
    subject = std::move(out);
  }
  return subject;
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr of) {
  for (;;) {
    if (is_operator("|")) {
      of = filters(std::move(of), /*first_is_named=*/false);
    } else if (is_name("is")) {
      of = test(std::move(of));
    } else if (is_operator("(")) {
      of = call(std::move(of));
    } else {
      return of;
    }
  }
}

ExprPtr ExpressionParser::test(ExprPtr of) {
  take();
  const bool negated = skip_word("not");
  ExprPtr out = make(Op::Test, std::move(of));
  out->name = expect_name("the name of a test");
  while (skip_operator(".")) out->name += "." + expect_name("the name of a test");
  out->builtin = find_test(out->name);
  const Token::Type type = current().type;
  const bool literal = type == Token::Type::Name || type == Token::Type::String || type == Token::Type::Integer ||
                       type == Token::Type::Float || is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    arguments(*out);
  } else if (literal && !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) fail("found two tests one after another, expected brackets around the first");
    add(*out, postfix(primary()));
  }
  return negated ? make(Op::Not, std::move(out)) : std::move(out);
}

}  // namespace snug::jinja
