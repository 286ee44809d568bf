#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/builder.h"
#include "text/jinja/compare.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lookup.h"
#include "text/jinja/node.h"
#include "text/jinja/predicates.h"
#include "text/jinja/repr.h"

namespace tdock::jinja {

absl::Status Interpreter::Locate(const absl::Status& status, int32_t line) {
  if (is_located_ || is_raised() || meter().stopped()) return status;
  is_located_ = true;
  return absl::Status(status.code(), absl::StrCat("line ", line, ": ", status.message()));
}

Value Interpreter::NameValue(const Expr& expr) {
  const Value& value = At(expr.slot);
  return value.kind() == Value::Kind::kMissing ? Undefined(absl::StrCat("'", expr.name, "' is undefined")) : value;
}

absl::StatusOr<Value> Interpreter::Evaluate(const Expr& expr) {
  meter().Spend(1);
  if (expr.kind == Expr::Kind::kConstant) return expr.constant;
  if (expr.kind == Expr::Kind::kName) return NameValue(expr);
  const Level level(*this);
  if (level.is_too_deep()) return Locate(TooDeep(), expr.line);
  absl::StatusOr<Value> value = EvaluateExpr(expr);
  if (!value.ok()) [[unlikely]]
    return Locate(value.status(), expr.line);
  if (meter().failed()) [[unlikely]]
    return Locate(meter().status(), expr.line);
  return value;
}

absl::StatusOr<Value> Interpreter::EvaluateExpr(const Expr& expr) {
  switch (expr.kind) {
    case Expr::Kind::kTuple:
    case Expr::Kind::kList:
      return EvaluateItems(expr);
    case Expr::Kind::kDict:
      return EvaluateDict(expr);
    case Expr::Kind::kConditional:
      return EvaluateConditional(expr);
    case Expr::Kind::kOr:
    case Expr::Kind::kAnd: {
      TDOCK_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.parts[0]));
      if (IsTrue(left) == (expr.kind == Expr::Kind::kOr)) return left;
      return Evaluate(*expr.parts[1]);
    }
    case Expr::Kind::kNot: {
      TDOCK_ASSIGN_OR_RETURN(const Value operand, Evaluate(*expr.parts[0]));
      return Value::Bool(!IsTrue(operand));
    }
    case Expr::Kind::kCompare:
      return EvaluateComparison(expr);
    case Expr::Kind::kConcat:
      return EvaluateConcat(expr);
    case Expr::Kind::kBinary: {
      TDOCK_ASSIGN_OR_RETURN(const Value left, Evaluate(*expr.parts[0]));
      TDOCK_ASSIGN_OR_RETURN(const Value right, Evaluate(*expr.parts[1]));
      return Calculate(*this, expr.operators[0], left, right);
    }
    case Expr::Kind::kNegative:
    case Expr::Kind::kPositive: {
      TDOCK_ASSIGN_OR_RETURN(const Value operand, Evaluate(*expr.parts[0]));
      return Negate(operand, expr.kind == Expr::Kind::kNegative);
    }
    case Expr::Kind::kAttribute: {
      TDOCK_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr.parts[0]));
      return GetAttribute(*this, value, expr.constant);
    }
    case Expr::Kind::kItem:
      return EvaluateItem(expr);
    case Expr::Kind::kCall:
      return EvaluateCall(expr, nullptr);
    case Expr::Kind::kFilter:
      return EvaluateFilter(expr);
    case Expr::Kind::kTest:
      return EvaluateTest(expr);
    default:
      return absl::InvalidArgumentError("this cannot be computed");
  }
}

absl::StatusOr<Value> Interpreter::EvaluateItems(const Expr& expr) {
  Value::Items items;
  items.reserve(expr.parts.size());
  for (const ExprPtr& part : expr.parts) {
    TDOCK_ASSIGN_OR_RETURN(Value item, Evaluate(*part));
    items.push_back(std::move(item));
  }
  return expr.kind == Expr::Kind::kList ? List(std::move(items)) : Tuple(std::move(items));
}

absl::StatusOr<Value> Interpreter::EvaluateDict(const Expr& expr) {
  Value::Pairs pairs;
  pairs.reserve(expr.parts.size() / 2);
  for (size_t i = 0; i < expr.parts.size(); i += 2) {
    TDOCK_ASSIGN_OR_RETURN(Value key, Evaluate(*expr.parts[i]));
    TDOCK_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.parts[i + 1]));
    TDOCK_RETURN_IF_ERROR(CheckHashable(key));
    pairs.emplace_back(std::move(key), std::move(value));
  }
  return Dict(std::move(pairs));
}

absl::StatusOr<Value> Interpreter::EvaluateConditional(const Expr& expr) {
  TDOCK_ASSIGN_OR_RETURN(const Value test, Evaluate(*expr.parts[0]));
  if (IsTrue(test)) return Evaluate(*expr.parts[1]);
  if (expr.parts[2] != nullptr) return Evaluate(*expr.parts[2]);
  return Undefined("the 'if' of an expression is false, and it has no 'else'");
}

absl::StatusOr<Value> Interpreter::EvaluateComparison(const Expr& expr) {
  TDOCK_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.parts[0]));
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(Value right, Evaluate(*expr.parts[i + 1]));
    TDOCK_ASSIGN_OR_RETURN(const bool holds, CompareBy(*this, expr.operators[i], left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Interpreter::EvaluateConcat(const Expr& expr) {
  TextBuilder out(meter());
  std::vector<Value> values;
  for (const ExprPtr& part : expr.parts) {
    TDOCK_ASSIGN_OR_RETURN(Value value, Evaluate(*part));
    values.push_back(std::move(value));
  }
  for (const Value& value : values) {
    if (value.is_text()) {
      out.Append(value.AsText());
      continue;
    }
    TDOCK_ASSIGN_OR_RETURN(const Text text, Str(*this, value));
    out.Append(text);
  }
  return String(out.Take());
}

absl::StatusOr<Value> Interpreter::EvaluateItem(const Expr& expr) {
  TDOCK_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr.parts[0]));
  const Expr& index = *expr.parts[1];
  if (index.kind != Expr::Kind::kSlice) {
    TDOCK_ASSIGN_OR_RETURN(const Value key, Evaluate(index));
    return GetItem(*this, value, key);
  }
  SliceBounds bounds;
  std::optional<int64_t>* const places[] = {&bounds.begin, &bounds.end, &bounds.step};
  for (size_t i = 0; i < 3; ++i) {
    if (index.parts[i] == nullptr) continue;
    TDOCK_ASSIGN_OR_RETURN(const Value bound, Evaluate(*index.parts[i]));
    if (bound.kind() == Value::Kind::kNone) continue;
    TDOCK_ASSIGN_OR_RETURN(*places[i], IntOf(bound, "a bound of a slice"));
  }
  return SliceOf(*this, value, bounds);
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expr& expr) {
  Arguments arguments;
  arguments.positional.reserve(expr.parts.size() - 1);
  for (size_t i = 1; i < expr.parts.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.parts[i]));
    arguments.positional.push_back(std::move(value));
  }
  if (expr.star != nullptr) {
    TDOCK_ASSIGN_OR_RETURN(const Value star, Evaluate(*expr.star));
    TDOCK_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(*this, star));
    arguments.positional.insert(arguments.positional.end(), items.begin(), items.end());
  }
  for (const auto& [name, argument] : expr.keywords) {
    TDOCK_ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    arguments.named.emplace_back(name, std::move(value));
  }
  if (expr.star_star == nullptr) return arguments;
  TDOCK_ASSIGN_OR_RETURN(const Value dict, Evaluate(*expr.star_star));
  if (!dict.is_dict())
    return absl::InvalidArgumentError(absl::StrCat("'**' needs a dict, not a value of the type ", TypeName(dict)));
  for (const auto& [name, value] : dict.AsDict().pairs) {
    if (!name.is_text()) return absl::InvalidArgumentError("the keys of a dict after '**' must be strings");
    if (!meter().Spend(1 + static_cast<int64_t>(arguments.named.size() / 8))) return meter().status();
    for (const auto& [other, given] : arguments.named) {
      if (Equal(other, name, nullptr))
        return absl::InvalidArgumentError(
            absl::StrCat("the argument ", Quoted(name.AsText().bytes()), " is given twice"));
    }
    arguments.named.emplace_back(name, value);
  }
  return arguments;
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expr& expr, const Value* caller) {
  const Expr& callee = *expr.parts[0];
  // A method is called without a value that stands for it.
  if (callee.kind == Expr::Kind::kAttribute) {
    TDOCK_ASSIGN_OR_RETURN(const Value self, Evaluate(*callee.parts[0]));
    if (HasMethod(self, callee.name)) {
      TDOCK_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expr));
      if (caller != nullptr) arguments.named.emplace_back(String("caller"), *caller);
      return CallMethod(*this, self, callee.name, arguments);
    }
    TDOCK_ASSIGN_OR_RETURN(const Value function, GetAttribute(*this, self, callee.constant));
    TDOCK_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expr));
    if (caller != nullptr) arguments.named.emplace_back(String("caller"), *caller);
    return Call(function, std::move(arguments));
  }
  TDOCK_ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
  TDOCK_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expr));
  if (caller != nullptr) arguments.named.emplace_back(String("caller"), *caller);
  return Call(function, std::move(arguments));
}

absl::StatusOr<Value> Interpreter::Call(const Value& callee, Arguments arguments) {
  if (callee.is_undefined()) return absl::InvalidArgumentError(callee.undefined_message());
  if (callee.kind() == Value::Kind::kObject) {
    Object& object = callee.AsObject();
    switch (object.type()) {
      case Object::Type::kMacro:
        return CallMacro(static_cast<const Macro&>(object), arguments);
      case Object::Type::kFunction:
        return static_cast<const Builtin&>(object).call(*this, arguments);
      case Object::Type::kMethod: {
        const auto& method = static_cast<const Method&>(object);
        return CallMethod(*this, method.self, method.name, arguments);
      }
      case Object::Type::kJoiner: {
        auto& joiner = static_cast<Joiner&>(object);
        if (!arguments.positional.empty() || !arguments.named.empty())
          return absl::InvalidArgumentError("a joiner takes no arguments");
        if (joiner.used) return joiner.separator;
        joiner.used = true;
        return String("");
      }
      case Object::Type::kLoop: {
        const auto& loop = static_cast<const Loop&>(object);
        if (!loop.stmt.is_recursive)
          return absl::InvalidArgumentError("only a loop that is marked 'recursive' can be called");
        if (arguments.positional.size() != 1 || !arguments.named.empty())
          return absl::InvalidArgumentError("a recursive loop takes one argument, what it goes through");
        TDOCK_ASSIGN_OR_RETURN(Text text,
                               RunRecursive(loop.stmt, arguments.positional[0], loop.depth0 + 1, loop.outer));
        return String(std::move(text));
      }
      default:
        break;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("a value of the type ", TypeName(callee), " cannot be called"));
}

absl::StatusOr<Value> Interpreter::EvaluateFilter(const Expr& expr) {
  Value input = block_text_;
  if (expr.parts[0] != nullptr) {
    TDOCK_ASSIGN_OR_RETURN(input, Evaluate(*expr.parts[0]));
  }
  if (expr.filter == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("there is no filter called ", Quoted(expr.name)));
  TDOCK_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expr));
  return expr.filter->run(*this, input, arguments);
}

absl::StatusOr<Value> Interpreter::EvaluateTest(const Expr& expr) {
  TDOCK_ASSIGN_OR_RETURN(const Value input, Evaluate(*expr.parts[0]));
  if (expr.predicate == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("there is no test called ", Quoted(expr.name)));
  TDOCK_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expr));
  TDOCK_ASSIGN_OR_RETURN(const bool holds, expr.predicate->run(*this, input, arguments));
  return Value::Bool(holds);
}

}  // namespace tdock::jinja
