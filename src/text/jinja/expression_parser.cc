#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/filters.h"
#include "text/jinja/parser.h"
#include "text/jinja/predicates.h"

namespace tdock::jinja {
namespace {

// How much higher than the limit of nesting a tree may be: long sums and chains of filters nest without brackets.
constexpr int kHeightPerDepth = 10;

std::optional<Operator> ComparisonOf(const Token& token) {
  if (token.Is("==")) return Operator::kEq;
  if (token.Is("!=")) return Operator::kNe;
  if (token.Is("<")) return Operator::kLt;
  if (token.Is("<=")) return Operator::kLe;
  if (token.Is(">")) return Operator::kGt;
  if (token.Is(">=")) return Operator::kGe;
  return std::nullopt;
}

void Grow(Expr& expr, const ExprPtr& part) {
  if (part != nullptr) expr.height = std::max(expr.height, part->height + 1);
}

}  // namespace

ExprPtr ExpressionParser::Make(Expr::Kind kind, int32_t line) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

absl::Status ExpressionParser::Nested::Check() const {
  if (parser_.depth_ <= parser_.depth_limit_) return absl::OkStatus();
  return ErrorAtLine(parser_.tokens_.current().line,
                     absl::StrCat("blocks and expressions nest more than ", parser_.depth_limit_, " levels deep"));
}

// With its height, which what follows on from trees relies on: none is deeper than the stack allows.
absl::StatusOr<ExprPtr> ExpressionParser::Finish(ExprPtr expr) const {
  for (const ExprPtr& part : expr->parts) Grow(*expr, part);
  for (const auto& [name, value] : expr->keywords) Grow(*expr, value);
  Grow(*expr, expr->star);
  Grow(*expr, expr->star_star);
  if (expr->height <= kHeightPerDepth * depth_limit_) return expr;
  return ErrorAtLine(expr->line, absl::StrCat("an expression has more than ", kHeightPerDepth * depth_limit_,
                                              " operations one on the other"));
}

absl::StatusOr<ExprPtr> ExpressionParser::Expression(bool with_conditional) {
  const Nested nested(*this);
  TDOCK_RETURN_IF_ERROR(nested.Check());
  return with_conditional ? Conditional() : Or();
}

absl::StatusOr<ExprPtr> ExpressionParser::Conditional() {
  int32_t line = tokens_.current().line;
  TDOCK_ASSIGN_OR_RETURN(ExprPtr expr, Or());
  while (tokens_.SkipName("if")) {
    ExprPtr conditional = Make(Expr::Kind::kConditional, line);
    TDOCK_ASSIGN_OR_RETURN(ExprPtr test, Or());
    ExprPtr otherwise;
    if (tokens_.SkipName("else")) {
      TDOCK_ASSIGN_OR_RETURN(otherwise, Expression());
    }
    conditional->parts.push_back(std::move(test));
    conditional->parts.push_back(std::move(expr));
    conditional->parts.push_back(std::move(otherwise));
    TDOCK_ASSIGN_OR_RETURN(expr, Finish(std::move(conditional)));
    line = tokens_.current().line;
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::Words(absl::string_view word, Expr::Kind kind, Step operand) {
  TDOCK_ASSIGN_OR_RETURN(ExprPtr expr, (this->*operand)());
  while (tokens_.SkipName(word)) {
    ExprPtr joined = Make(kind, tokens_.current().line);
    TDOCK_ASSIGN_OR_RETURN(ExprPtr right, (this->*operand)());
    joined->parts.push_back(std::move(expr));
    joined->parts.push_back(std::move(right));
    TDOCK_ASSIGN_OR_RETURN(expr, Finish(std::move(joined)));
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::Or() { return Words("or", Expr::Kind::kOr, &ExpressionParser::And); }
absl::StatusOr<ExprPtr> ExpressionParser::And() { return Words("and", Expr::Kind::kAnd, &ExpressionParser::Not); }

absl::StatusOr<ExprPtr> ExpressionParser::Not() {
  if (!tokens_.current().IsName("not")) return Comparison();
  const Nested nested(*this);
  TDOCK_RETURN_IF_ERROR(nested.Check());
  ExprPtr expr = Make(Expr::Kind::kNot, tokens_.Next().line);
  TDOCK_ASSIGN_OR_RETURN(ExprPtr operand, Not());
  expr->parts.push_back(std::move(operand));
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Comparison() {
  TDOCK_ASSIGN_OR_RETURN(ExprPtr first, Sum());
  ExprPtr comparison;
  while (true) {
    std::optional<Operator> op = ComparisonOf(tokens_.current());
    if (op) {
      tokens_.Next();
    } else if (tokens_.SkipName("in")) {
      op = Operator::kIn;
    } else if (tokens_.current().IsName("not") && tokens_.look().IsName("in")) {
      tokens_.Next();
      tokens_.Next();
      op = Operator::kNotIn;
    } else {
      break;
    }
    if (comparison == nullptr) {
      comparison = Make(Expr::Kind::kCompare, first->line);
      comparison->parts.push_back(std::move(first));
    }
    TDOCK_ASSIGN_OR_RETURN(ExprPtr next, Sum());
    comparison->parts.push_back(std::move(next));
    comparison->operators.push_back(*op);
  }
  return comparison == nullptr ? absl::StatusOr<ExprPtr>(std::move(first)) : Finish(std::move(comparison));
}

absl::StatusOr<ExprPtr> ExpressionParser::Binary(ExprPtr left, Operator op, Step operand) {
  ExprPtr expr = Make(Expr::Kind::kBinary, tokens_.Next().line);
  TDOCK_ASSIGN_OR_RETURN(ExprPtr right, (this->*operand)());
  expr->operators.push_back(op);
  expr->parts.push_back(std::move(left));
  expr->parts.push_back(std::move(right));
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Sum() {
  TDOCK_ASSIGN_OR_RETURN(ExprPtr expr, Concat());
  while (tokens_.current().Is("+") || tokens_.current().Is("-")) {
    const Operator op = tokens_.current().Is("+") ? Operator::kAdd : Operator::kSub;
    TDOCK_ASSIGN_OR_RETURN(expr, Binary(std::move(expr), op, &ExpressionParser::Concat));
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::Concat() {
  TDOCK_ASSIGN_OR_RETURN(ExprPtr first, Product());
  if (!tokens_.current().Is("~")) return first;
  ExprPtr expr = Make(Expr::Kind::kConcat, first->line);
  expr->parts.push_back(std::move(first));
  while (tokens_.SkipOperator("~")) {
    TDOCK_ASSIGN_OR_RETURN(ExprPtr next, Product());
    expr->parts.push_back(std::move(next));
  }
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Product() {
  TDOCK_ASSIGN_OR_RETURN(ExprPtr expr, Power());
  while (true) {
    const Token& token = tokens_.current();
    Operator op;
    if (token.Is("*")) {
      op = Operator::kMul;
    } else if (token.Is("/")) {
      op = Operator::kDiv;
    } else if (token.Is("//")) {
      op = Operator::kFloorDiv;
    } else if (token.Is("%")) {
      op = Operator::kMod;
    } else {
      return expr;
    }
    TDOCK_ASSIGN_OR_RETURN(expr, Binary(std::move(expr), op, &ExpressionParser::Power));
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Power() {
  TDOCK_ASSIGN_OR_RETURN(ExprPtr expr, Unary(true));
  while (tokens_.current().Is("**")) {
    TDOCK_ASSIGN_OR_RETURN(expr, Binary(std::move(expr), Operator::kPow, &ExpressionParser::UnaryWithFilters));
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::Unary(bool with_filters) {
  ExprPtr expr;
  if (tokens_.current().Is("-") || tokens_.current().Is("+")) {
    const Nested nested(*this);
    TDOCK_RETURN_IF_ERROR(nested.Check());
    const bool is_negative = tokens_.current().Is("-");
    expr = Make(is_negative ? Expr::Kind::kNegative : Expr::Kind::kPositive, tokens_.Next().line);
    TDOCK_ASSIGN_OR_RETURN(ExprPtr operand, Unary(false));
    expr->parts.push_back(std::move(operand));
    TDOCK_ASSIGN_OR_RETURN(expr, Finish(std::move(expr)));
  } else {
    TDOCK_ASSIGN_OR_RETURN(expr, Primary());
  }
  TDOCK_ASSIGN_OR_RETURN(expr, Postfix(std::move(expr)));
  return with_filters ? FiltersAndTests(std::move(expr)) : std::move(expr);
}

absl::StatusOr<ExprPtr> ExpressionParser::Primary(bool with_namespace) {
  const Token token = tokens_.current();
  ExprPtr expr = Make(Expr::Kind::kConstant, token.line);
  switch (token.type) {
    case Token::Type::kName:
      tokens_.Next();
      if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
        expr->constant = Value::Bool(token.text == "true" || token.text == "True");
      } else if (token.text == "none" || token.text == "None") {
        expr->constant = Value::None();
      } else {
        expr->kind = Expr::Kind::kName;
        expr->name = token.text;
        if (with_namespace && tokens_.SkipOperator(".")) {
          TDOCK_ASSIGN_OR_RETURN(const Token attribute, tokens_.ExpectAnyName());
          expr->kind = Expr::Kind::kAttributeOfNamespace;
          expr->constant = Value::String(attribute.text);
        }
      }
      return expr;
    case Token::Type::kString: {
      std::string text;
      while (tokens_.current().type == Token::Type::kString) text += tokens_.Next().text;
      expr->constant = Value::String(text);
      return expr;
    }
    case Token::Type::kInteger:
    case Token::Type::kFloat:
      expr->constant = tokens_.Next().number;
      return expr;
    default:
      break;
  }
  if (token.Is("(")) {
    tokens_.Next();
    TDOCK_ASSIGN_OR_RETURN(expr, Tuple(/*with_conditional=*/true, Ends::kTag, /*in_brackets=*/true));
    TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    return expr;
  }
  if (token.Is("[")) return List();
  if (token.Is("{")) return Dict();
  return tokens_.Unexpected("an expression");
}

bool ExpressionParser::EndsTuple(Ends ends) const {
  const Token& token = tokens_.current();
  if (token.type == Token::Type::kVariableEnd || token.type == Token::Type::kBlockEnd || token.Is(")")) return true;
  return (ends == Ends::kIn && token.IsName("in")) || (ends == Ends::kRecursive && token.IsName("recursive"));
}

absl::StatusOr<ExprPtr> ExpressionParser::Tuple(bool with_conditional, Ends ends, bool in_brackets) {
  ExprPtr tuple = Make(Expr::Kind::kTuple, tokens_.current().line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->parts.empty()) TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    if (EndsTuple(ends)) break;
    TDOCK_ASSIGN_OR_RETURN(ExprPtr item, Expression(with_conditional));
    tuple->parts.push_back(std::move(item));
    if (!tokens_.current().Is(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !tuple->parts.empty()) return std::move(tuple->parts[0]);
  if (!is_tuple && !in_brackets) return tokens_.Unexpected("an expression");
  return Finish(std::move(tuple));
}

absl::StatusOr<ExprPtr> ExpressionParser::Target(Ends ends, bool with_namespace) {
  ExprPtr tuple = Make(Expr::Kind::kTuple, tokens_.current().line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->parts.empty()) TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    if (EndsTuple(ends)) break;
    TDOCK_ASSIGN_OR_RETURN(ExprPtr item, Primary(with_namespace));
    tuple->parts.push_back(std::move(item));
    if (!tokens_.current().Is(",")) break;
    is_tuple = true;
  }
  if (tuple->parts.empty()) return tokens_.Unexpected("the name of a variable");
  if (!is_tuple) tuple = std::move(tuple->parts[0]);
  TDOCK_RETURN_IF_ERROR(CheckTarget(*tuple));
  return Finish(std::move(tuple));
}

absl::Status ExpressionParser::CheckTarget(const Expr& target) const {
  if (target.kind == Expr::Kind::kName || target.kind == Expr::Kind::kAttributeOfNamespace) return absl::OkStatus();
  if (target.kind != Expr::Kind::kTuple) return ErrorAtLine(target.line, "only variables can be assigned to");
  for (const ExprPtr& part : target.parts) TDOCK_RETURN_IF_ERROR(CheckTarget(*part));
  return absl::OkStatus();
}

absl::StatusOr<ExprPtr> ExpressionParser::List() {
  ExprPtr list = Make(Expr::Kind::kList, tokens_.Next().line);
  while (!tokens_.current().Is("]")) {
    if (!list->parts.empty()) {
      TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.current().Is("]")) break;
    }
    TDOCK_ASSIGN_OR_RETURN(ExprPtr item, Expression());
    list->parts.push_back(std::move(item));
  }
  tokens_.Next();
  return Finish(std::move(list));
}

absl::StatusOr<ExprPtr> ExpressionParser::Dict() {
  ExprPtr dict = Make(Expr::Kind::kDict, tokens_.Next().line);
  while (!tokens_.current().Is("}")) {
    if (!dict->parts.empty()) {
      TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.current().Is("}")) break;
    }
    TDOCK_ASSIGN_OR_RETURN(ExprPtr key, Expression());
    TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    TDOCK_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    dict->parts.push_back(std::move(key));
    dict->parts.push_back(std::move(value));
  }
  tokens_.Next();
  return Finish(std::move(dict));
}

absl::StatusOr<ExprPtr> ExpressionParser::Postfix(ExprPtr expr) {
  while (true) {
    if (tokens_.current().Is(".") || tokens_.current().Is("[")) {
      TDOCK_ASSIGN_OR_RETURN(expr, Subscript(std::move(expr)));
    } else if (tokens_.current().Is("(")) {
      TDOCK_ASSIGN_OR_RETURN(expr, Call(std::move(expr)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::FiltersAndTests(ExprPtr expr) {
  while (true) {
    if (tokens_.current().Is("|")) {
      TDOCK_ASSIGN_OR_RETURN(expr, Filters(std::move(expr)));
    } else if (tokens_.current().IsName("is")) {
      TDOCK_ASSIGN_OR_RETURN(expr, Test(std::move(expr)));
    } else if (tokens_.current().Is("(")) {
      TDOCK_ASSIGN_OR_RETURN(expr, Call(std::move(expr)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Subscript(ExprPtr expr) {
  const Token token = tokens_.Next();
  ExprPtr item = Make(Expr::Kind::kItem, token.line);
  item->parts.push_back(std::move(expr));
  if (token.Is(".")) {
    const Token attribute = tokens_.current();
    if (attribute.type == Token::Type::kName) {
      item->kind = Expr::Kind::kAttribute;
      item->name = attribute.text;
      item->constant = Value::String(attribute.text);
    } else if (attribute.type == Token::Type::kInteger) {
      item->parts.push_back(Make(Expr::Kind::kConstant, token.line));
      item->parts.back()->constant = attribute.number;
    } else {
      return tokens_.Unexpected("a name or a number");
    }
    tokens_.Next();
    return Finish(std::move(item));
  }
  ExprPtr index = Make(Expr::Kind::kTuple, token.line);
  while (!tokens_.current().Is("]")) {
    if (!index->parts.empty()) TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    TDOCK_ASSIGN_OR_RETURN(ExprPtr part, SubscriptIndex());
    if (part->kind == Expr::Kind::kSlice && (tokens_.current().Is(",") || !index->parts.empty())) {
      return ErrorAtLine(token.line, "a slice must be the only index");
    }
    index->parts.push_back(std::move(part));
  }
  tokens_.Next();
  if (index->parts.size() == 1) index = std::move(index->parts[0]);
  TDOCK_ASSIGN_OR_RETURN(index, Finish(std::move(index)));
  item->parts.push_back(std::move(index));
  return Finish(std::move(item));
}

absl::StatusOr<ExprPtr> ExpressionParser::SubscriptIndex() {
  ExprPtr slice = Make(Expr::Kind::kSlice, tokens_.current().line);
  slice->parts.resize(3);
  if (!tokens_.SkipOperator(":")) {
    TDOCK_ASSIGN_OR_RETURN(ExprPtr begin, Expression());
    if (!tokens_.SkipOperator(":")) return begin;
    slice->parts[0] = std::move(begin);
  }
  const auto ends = [&] { return tokens_.current().Is("]") || tokens_.current().Is(","); };
  if (!tokens_.current().Is(":") && !ends()) {
    TDOCK_ASSIGN_OR_RETURN(slice->parts[1], Expression());
  }
  if (tokens_.SkipOperator(":") && !ends()) {
    TDOCK_ASSIGN_OR_RETURN(slice->parts[2], Expression());
  }
  return Finish(std::move(slice));
}

absl::Status ExpressionParser::CallArguments(Expr& call) {
  const int32_t line = tokens_.current().line;
  TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  const auto ensure = [&](bool is_valid) {
    return is_valid ? absl::OkStatus()
                    : ErrorAtLine(line, "the arguments of a call are in an order that means nothing");
  };
  for (bool is_first = true; !tokens_.current().Is(")"); is_first = false) {
    if (!is_first) {
      TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.current().Is(")")) break;
    }
    if (tokens_.current().Is("*")) {
      TDOCK_RETURN_IF_ERROR(ensure(call.star == nullptr && call.star_star == nullptr));
      tokens_.Next();
      TDOCK_ASSIGN_OR_RETURN(call.star, Expression());
    } else if (tokens_.current().Is("**")) {
      TDOCK_RETURN_IF_ERROR(ensure(call.star_star == nullptr));
      tokens_.Next();
      TDOCK_ASSIGN_OR_RETURN(call.star_star, Expression());
    } else if (tokens_.current().type == Token::Type::kName && tokens_.look().Is("=")) {
      TDOCK_RETURN_IF_ERROR(ensure(call.star_star == nullptr));
      const std::string name = tokens_.Next().text;
      tokens_.Next();
      for (const auto& [other, value] : call.keywords) {
        if (other.AsText().bytes() == name)
          return ErrorAtLine(line, absl::StrCat("the argument ", Quoted(name), " is given twice"));
      }
      TDOCK_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      call.keywords.emplace_back(Value::String(name), std::move(value));
    } else {
      TDOCK_RETURN_IF_ERROR(ensure(call.star == nullptr && call.star_star == nullptr && call.keywords.empty()));
      TDOCK_ASSIGN_OR_RETURN(ExprPtr argument, Expression());
      call.parts.push_back(std::move(argument));
    }
  }
  return tokens_.ExpectOperator(")");
}

absl::StatusOr<ExprPtr> ExpressionParser::Call(ExprPtr callee) {
  ExprPtr call = Make(Expr::Kind::kCall, tokens_.current().line);
  call->parts.push_back(std::move(callee));
  TDOCK_RETURN_IF_ERROR(CallArguments(*call));
  return Finish(std::move(call));
}

absl::StatusOr<std::string> ExpressionParser::DottedName() {
  TDOCK_ASSIGN_OR_RETURN(const Token first, tokens_.ExpectAnyName());
  std::string name = first.text;
  while (tokens_.SkipOperator(".")) {
    TDOCK_ASSIGN_OR_RETURN(const Token next, tokens_.ExpectAnyName());
    absl::StrAppend(&name, ".", next.text);
  }
  return name;
}

absl::StatusOr<ExprPtr> ExpressionParser::Filters(ExprPtr input, bool is_first) {
  while (is_first || tokens_.SkipOperator("|")) {
    is_first = false;
    ExprPtr filter = Make(Expr::Kind::kFilter, tokens_.current().line);
    TDOCK_ASSIGN_OR_RETURN(filter->name, DottedName());
    filter->filter = FindFilter(filter->name);
    if (filter->name == "random") {
      return absl::UnimplementedError(
          absl::StrCat("line ", filter->line,
                       ": the filter random is not supported: a chat template must render the same each time"));
    }
    filter->parts.push_back(std::move(input));
    if (tokens_.current().Is("(")) TDOCK_RETURN_IF_ERROR(CallArguments(*filter));
    TDOCK_ASSIGN_OR_RETURN(input, Finish(std::move(filter)));
  }
  return input;
}

absl::StatusOr<ExprPtr> ExpressionParser::Test(ExprPtr input) {
  ExprPtr test = Make(Expr::Kind::kTest, tokens_.Next().line);
  const bool is_negated = tokens_.SkipName("not");
  TDOCK_ASSIGN_OR_RETURN(test->name, DottedName());
  test->predicate = FindPredicate(test->name);
  test->parts.push_back(std::move(input));
  const Token& next = tokens_.current();
  const bool is_value = next.type == Token::Type::kName || next.type == Token::Type::kString ||
                        next.type == Token::Type::kInteger || next.type == Token::Type::kFloat || next.Is("[") ||
                        next.Is("{");
  if (next.Is("(")) {
    TDOCK_RETURN_IF_ERROR(CallArguments(*test));
  } else if (is_value && !next.IsName("else") && !next.IsName("or") && !next.IsName("and")) {
    if (next.IsName("is")) return ErrorAtLine(next.line, "tests cannot be chained with 'is'");
    TDOCK_ASSIGN_OR_RETURN(ExprPtr argument, Primary());
    TDOCK_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    test->parts.push_back(std::move(argument));
  }
  TDOCK_ASSIGN_OR_RETURN(test, Finish(std::move(test)));
  if (!is_negated) return test;
  ExprPtr negated = Make(Expr::Kind::kNot, test->line);
  negated->parts.push_back(std::move(test));
  return Finish(std::move(negated));
}

}  // namespace tdock::jinja
