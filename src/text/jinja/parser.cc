#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/lexer.h"

namespace tdock::jinja {

const Token& TokenStream::Next() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenStream::SkipOperator(absl::string_view op) {
  const bool is = current().Is(op);
  if (is) Next();
  return is;
}

bool TokenStream::SkipName(absl::string_view name) {
  const bool is = current().IsName(name);
  if (is) Next();
  return is;
}

absl::Status TokenStream::Unexpected(absl::string_view wanted) const {
  return ErrorAtLine(current().line, absl::StrCat("expected ", wanted, ", got ", current().Describe()));
}

absl::Status TokenStream::ExpectOperator(absl::string_view op) {
  return SkipOperator(op) ? absl::OkStatus() : Unexpected(absl::StrCat("'", op, "'"));
}

absl::Status TokenStream::ExpectName(absl::string_view name) {
  return SkipName(name) ? absl::OkStatus() : Unexpected(absl::StrCat("'", name, "'"));
}

absl::StatusOr<Token> TokenStream::ExpectAnyName() {
  if (current().type != Token::Type::kName) return Unexpected("a name");
  return Next();
}

absl::Status TokenStream::Expect(Token::Type type, absl::string_view described) {
  if (current().type != type) return Unexpected(described);
  Next();
  return absl::OkStatus();
}

namespace {

bool IsConstantName(absl::string_view name) {
  return name == "true" || name == "True" || name == "false" || name == "False" || name == "none" || name == "None";
}

class StatementParser {
 public:
  StatementParser(std::vector<Token> tokens, const Limits& limits)
      : tokens_(std::move(tokens)), expressions_(tokens_, limits.depth) {
    program_.limits = limits;
  }

  absl::StatusOr<Program> Run() && {
    TDOCK_ASSIGN_OR_RETURN(program_.body, Statements({}));
    return std::move(program_);
  }

 private:
  using Kind = Stmt::Kind;
  using Ends = std::initializer_list<absl::string_view>;

  static StmtPtr Make(Kind kind, int32_t line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  // Up to one of the tags, of which the name is then the current token; without any, to the end of the template.
  absl::StatusOr<Body> Statements(Ends ends) {
    const ExpressionParser::Nested nested(expressions_);
    TDOCK_RETURN_IF_ERROR(nested.Check());
    Body body;
    StmtPtr output;  // consecutive texts and expressions
    const auto add = [&](ExprPtr expr) {
      if (output == nullptr) output = Make(Kind::kOutput, expr->line);
      output->parts.push_back(std::move(expr));
    };
    while (tokens_.current().type != Token::Type::kEof) {
      const Token token = tokens_.Next();
      if (token.type == Token::Type::kData) {
        ExprPtr data = ExpressionParser::Make(Expr::Kind::kConstant, token.line);
        data->constant = Value::String(token.text);
        add(std::move(data));
        continue;
      }
      if (token.type == Token::Type::kVariableBegin) {
        TDOCK_ASSIGN_OR_RETURN(ExprPtr expr, expressions_.Tuple());
        TDOCK_RETURN_IF_ERROR(tokens_.Expect(Token::Type::kVariableEnd, "'}}'"));
        add(std::move(expr));
        continue;
      }
      if (output != nullptr) body.push_back(std::move(output));
      const Token name = tokens_.current();
      if (name.type != Token::Type::kName) return tokens_.Unexpected("the name of a tag");
      if (std::find(ends.begin(), ends.end(), name.text) != ends.end()) return body;
      TDOCK_ASSIGN_OR_RETURN(StmtPtr stmt, Statement(name, ends));
      body.push_back(std::move(stmt));
      TDOCK_RETURN_IF_ERROR(tokens_.Expect(Token::Type::kBlockEnd, "'%}'"));
    }
    if (ends.size() > 0) return tokens_.Unexpected(absl::StrCat("{% ", absl::StrJoin(ends, " %} or {% "), " %}"));
    if (output != nullptr) body.push_back(std::move(output));
    return body;
  }

  // The rest of a tag and what follows it up to one of `ends`, of which the name is then the current token.
  absl::StatusOr<Body> Block(Ends ends) {
    tokens_.SkipOperator(":");
    TDOCK_RETURN_IF_ERROR(tokens_.Expect(Token::Type::kBlockEnd, "'%}'"));
    return Statements(ends);
  }

  // The same to the only `end`, which is passed.
  absl::StatusOr<Body> BlockUpTo(absl::string_view end) {
    TDOCK_ASSIGN_OR_RETURN(Body body, Block({end}));
    tokens_.Next();
    return body;
  }

  absl::StatusOr<StmtPtr> Statement(const Token& name, Ends ends) {
    if (name.text == "for") return For();
    if (name.text == "if") return If();
    if (name.text == "set") return Set();
    if (name.text == "macro") return Macro();
    if (name.text == "call") return CallBlock();
    if (name.text == "filter") return FilterBlock();
    if (name.text == "generation") return Generation();
    if (name.text == "with") return With();
    if (name.text == "print") return Print();
    if (name.text == "block") return NamedBlock();
    if (name.text == "break" || name.text == "continue") {
      tokens_.Next();
      return Make(name.text == "break" ? Kind::kBreak : Kind::kContinue, name.line);
    }
    for (const absl::string_view refused : {"extends", "include", "import", "from", "autoescape"}) {
      if (name.text == refused) {
        return absl::UnimplementedError(
            absl::StrCat("line ", name.line, ": {% ", refused, " %} is not supported in a chat template"));
      }
    }
    std::string message = absl::StrCat("unknown tag ", Quoted(name.text));
    if (ends.size() > 0)
      absl::StrAppend(&message, "; the open block ends with {% ", absl::StrJoin(ends, " %} or {% "), " %}");
    return ErrorAtLine(name.line, message);
  }

  absl::StatusOr<StmtPtr> For() {
    StmtPtr loop = Make(Kind::kFor, tokens_.Next().line);
    TDOCK_ASSIGN_OR_RETURN(loop->target, expressions_.Target(ExpressionParser::Ends::kIn));
    TDOCK_RETURN_IF_ERROR(tokens_.ExpectName("in"));
    TDOCK_ASSIGN_OR_RETURN(loop->value,
                           expressions_.Tuple(/*with_conditional=*/false, ExpressionParser::Ends::kRecursive));
    if (tokens_.SkipName("if")) {
      TDOCK_ASSIGN_OR_RETURN(loop->test, expressions_.Expression());
    }
    loop->is_recursive = tokens_.SkipName("recursive");
    TDOCK_ASSIGN_OR_RETURN(loop->body, Block({"endfor", "else"}));
    if (tokens_.Next().text == "else") {
      TDOCK_ASSIGN_OR_RETURN(loop->otherwise, BlockUpTo("endfor"));
    }
    return loop;
  }

  absl::StatusOr<StmtPtr> If() {
    StmtPtr stmt = Make(Kind::kIf, tokens_.current().line);
    while (true) {
      Branch branch{.test = nullptr, .body = {}, .line = tokens_.Next().line};
      TDOCK_ASSIGN_OR_RETURN(branch.test, expressions_.Tuple(/*with_conditional=*/false));
      TDOCK_ASSIGN_OR_RETURN(branch.body, Block({"elif", "else", "endif"}));
      stmt->branches.push_back(std::move(branch));
      if (tokens_.current().text == "elif") continue;
      if (tokens_.Next().text == "else") {
        TDOCK_ASSIGN_OR_RETURN(stmt->body, BlockUpTo("endif"));
      }
      return stmt;
    }
  }

  absl::StatusOr<StmtPtr> Set() {
    StmtPtr set = Make(Kind::kSet, tokens_.Next().line);
    TDOCK_ASSIGN_OR_RETURN(set->target, expressions_.Target(ExpressionParser::Ends::kTag, /*with_namespace=*/true));
    if (tokens_.SkipOperator("=")) {
      TDOCK_ASSIGN_OR_RETURN(set->value, expressions_.Tuple());
      return set;
    }
    set->kind = Kind::kSetBlock;
    TDOCK_ASSIGN_OR_RETURN(set->value, expressions_.Filters(nullptr));
    TDOCK_ASSIGN_OR_RETURN(set->body, BlockUpTo("endset"));
    return set;
  }

  absl::StatusOr<ExprPtr> Parameter() {
    TDOCK_ASSIGN_OR_RETURN(const Token name, tokens_.ExpectAnyName());
    if (IsConstantName(name.text)) return ErrorAtLine(name.line, absl::StrCat("cannot assign to ", name.text));
    ExprPtr parameter = ExpressionParser::Make(Expr::Kind::kName, name.line);
    parameter->name = name.text;
    return parameter;
  }

  absl::Status Signature(Stmt& macro) {
    TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.current().Is(")")) {
      if (!macro.parts.empty()) TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      TDOCK_ASSIGN_OR_RETURN(ExprPtr parameter, Parameter());
      for (const ExprPtr& other : macro.parts) {
        if (other->name == parameter->name) {
          return ErrorAtLine(parameter->line, absl::StrCat("two parameters are called ", Quoted(parameter->name)));
        }
      }
      if (tokens_.SkipOperator("=")) {
        TDOCK_ASSIGN_OR_RETURN(ExprPtr value, expressions_.Expression());
        macro.values.push_back(std::move(value));
      } else if (!macro.values.empty()) {
        return ErrorAtLine(parameter->line, absl::StrCat("the parameter ", Quoted(parameter->name),
                                                         " needs a default, because one before it has one"));
      }
      macro.parts.push_back(std::move(parameter));
    }
    return tokens_.ExpectOperator(")");
  }

  absl::StatusOr<StmtPtr> Macro() {
    StmtPtr macro = Make(Kind::kMacro, tokens_.Next().line);
    TDOCK_ASSIGN_OR_RETURN(macro->target, Parameter());
    macro->name = macro->target->name;
    TDOCK_RETURN_IF_ERROR(Signature(*macro));
    TDOCK_ASSIGN_OR_RETURN(macro->body, BlockUpTo("endmacro"));
    return macro;
  }

  absl::StatusOr<StmtPtr> CallBlock() {
    StmtPtr block = Make(Kind::kCallBlock, tokens_.Next().line);
    if (tokens_.current().Is("(")) TDOCK_RETURN_IF_ERROR(Signature(*block));
    TDOCK_ASSIGN_OR_RETURN(block->value, expressions_.Expression());
    if (block->value->kind != Expr::Kind::kCall)
      return ErrorAtLine(block->line, "{% call %} needs a call, such as name()");
    TDOCK_ASSIGN_OR_RETURN(block->body, BlockUpTo("endcall"));
    return block;
  }

  absl::StatusOr<StmtPtr> FilterBlock() {
    StmtPtr block = Make(Kind::kFilterBlock, tokens_.Next().line);
    TDOCK_ASSIGN_OR_RETURN(block->value, expressions_.Filters(nullptr, /*is_first=*/true));
    TDOCK_ASSIGN_OR_RETURN(block->body, BlockUpTo("endfilter"));
    return block;
  }

  absl::StatusOr<StmtPtr> Generation() {
    StmtPtr block = Make(Kind::kGeneration, tokens_.Next().line);
    program_.marks_generation = true;
    TDOCK_ASSIGN_OR_RETURN(block->body, BlockUpTo("endgeneration"));
    return block;
  }

  absl::StatusOr<StmtPtr> With() {
    StmtPtr with = Make(Kind::kWith, tokens_.Next().line);
    while (tokens_.current().type != Token::Type::kBlockEnd) {
      if (!with->parts.empty()) TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      TDOCK_ASSIGN_OR_RETURN(ExprPtr target, expressions_.Target());
      TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator("="));
      TDOCK_ASSIGN_OR_RETURN(ExprPtr value, expressions_.Expression());
      with->parts.push_back(std::move(target));
      with->values.push_back(std::move(value));
    }
    TDOCK_ASSIGN_OR_RETURN(with->body, BlockUpTo("endwith"));
    return with;
  }

  absl::StatusOr<StmtPtr> Print() {
    StmtPtr output = Make(Kind::kOutput, tokens_.Next().line);
    while (tokens_.current().type != Token::Type::kBlockEnd) {
      if (!output->parts.empty()) TDOCK_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      TDOCK_ASSIGN_OR_RETURN(ExprPtr expr, expressions_.Expression());
      output->parts.push_back(std::move(expr));
    }
    return output;
  }

  // Without a template that extends this one, a block is what it contains.
  absl::StatusOr<StmtPtr> NamedBlock() {
    StmtPtr block = Make(Kind::kScope, tokens_.Next().line);
    TDOCK_ASSIGN_OR_RETURN(const Token name, tokens_.ExpectAnyName());
    tokens_.SkipName("scoped");
    if (tokens_.current().IsName("required")) {
      return absl::UnimplementedError(
          absl::StrCat("line ", block->line, ": a required block is not supported in a chat template"));
    }
    TDOCK_ASSIGN_OR_RETURN(block->body, BlockUpTo("endblock"));
    tokens_.SkipName(name.text);
    return block;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  Program program_;
};

}  // namespace

absl::StatusOr<Program> ParseProgram(absl::string_view source, const Limits& limits) {
  if (source.size() > limits.source_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a template of ", source.size(), " bytes exceeds the limit of ", limits.source_bytes));
  }
  if (const auto invalid = FindInvalidUtf8(source)) {
    const auto line = 1 + std::count(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(*invalid), '\n');
    return ErrorAtLine(static_cast<int32_t>(line), "the template is not UTF-8");
  }
  TDOCK_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return StatementParser(std::move(tokens), limits).Run();
}

}  // namespace tdock::jinja
