// Tokens as a tree. Internal to this module.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace tdock::jinja {

// A program whose variables have no places yet. InvalidArgument or Unimplemented, with the line.
absl::StatusOr<Program> ParseProgram(absl::string_view source, const Limits& limits);

// Reads the tokens of a template one after another. Not thread-safe.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  // The current one, and on to the next.
  const Token& Next();
  bool SkipOperator(absl::string_view op);
  bool SkipName(absl::string_view name);
  absl::Status ExpectOperator(absl::string_view op);
  absl::Status ExpectName(absl::string_view name);
  absl::StatusOr<Token> ExpectAnyName();
  absl::Status Expect(Token::Type type, absl::string_view described);
  absl::Status Unexpected(absl::string_view wanted) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

// Expressions, in the grammar of Jinja. Not thread-safe.
class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, int depth) : tokens_(tokens), depth_limit_(depth) {}

  // What may end a tuple without brackets besides the end of a tag.
  enum class Ends { kTag, kIn, kRecursive };

  absl::StatusOr<ExprPtr> Expression(bool with_conditional = true);
  absl::StatusOr<ExprPtr> Tuple(bool with_conditional = true, Ends ends = Ends::kTag, bool in_brackets = false);
  // What may be assigned to: names, tuples of them, with `with_namespace` attributes of namespaces.
  absl::StatusOr<ExprPtr> Target(Ends ends = Ends::kTag, bool with_namespace = false);
  // The filters behind `input`, which may be null; null if there is none and no input. `is_first` reads a filter that
  // has no "|" before it.
  absl::StatusOr<ExprPtr> Filters(ExprPtr input, bool is_first = false);
  absl::Status CallArguments(Expr& call);

  static ExprPtr Make(Expr::Kind kind, int32_t line);

  // Counts nested blocks and expressions.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser) : parser_(parser) { ++parser_.depth_; }
    ~Nested() { --parser_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    absl::Status Check() const;

   private:
    ExpressionParser& parser_;
  };

 private:
  using Step = absl::StatusOr<ExprPtr> (ExpressionParser::*)();

  absl::StatusOr<ExprPtr> Finish(ExprPtr expr) const;
  absl::StatusOr<ExprPtr> Conditional();
  absl::StatusOr<ExprPtr> Words(absl::string_view word, Expr::Kind kind, Step operand);
  absl::StatusOr<ExprPtr> Or();
  absl::StatusOr<ExprPtr> And();
  absl::StatusOr<ExprPtr> Not();
  absl::StatusOr<ExprPtr> Comparison();
  absl::StatusOr<ExprPtr> Sum();
  absl::StatusOr<ExprPtr> Concat();
  absl::StatusOr<ExprPtr> Product();
  absl::StatusOr<ExprPtr> Power();
  absl::StatusOr<ExprPtr> Binary(ExprPtr left, Operator op, Step operand);
  absl::StatusOr<ExprPtr> UnaryWithFilters() { return Unary(true); }
  absl::StatusOr<ExprPtr> Unary(bool with_filters);
  absl::StatusOr<ExprPtr> Primary(bool with_namespace = false);
  absl::StatusOr<ExprPtr> List();
  absl::StatusOr<ExprPtr> Dict();
  absl::StatusOr<ExprPtr> Postfix(ExprPtr expr);
  absl::StatusOr<ExprPtr> FiltersAndTests(ExprPtr expr);
  absl::StatusOr<ExprPtr> Subscript(ExprPtr expr);
  absl::StatusOr<ExprPtr> SubscriptIndex();
  absl::StatusOr<ExprPtr> Call(ExprPtr callee);
  absl::StatusOr<ExprPtr> Test(ExprPtr input);
  absl::StatusOr<std::string> DottedName();
  absl::Status CheckTarget(const Expr& target) const;
  bool EndsTuple(Ends ends) const;

  TokenStream& tokens_;
  const int depth_limit_;
  int depth_ = 0;
};

}  // namespace tdock::jinja
