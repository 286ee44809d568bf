#include "text/jinja/scopes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/lexer.h"

namespace tdock::jinja {
namespace {

enum class Use { kLoad, kStore, kParameter };

// The variables that one block adds.
struct Symbols {
  struct Known {
    Load::Kind load;
    int alias_level = 0;
  };

  explicit Symbols(const Symbols* outer) : parent(outer), level(outer == nullptr ? 0 : outer->level + 1) {}

  // The level of the block whose variable a name means; nullopt: none so far.
  std::optional<int> Find(const std::string& name) const {
    for (const Symbols* block = this; block != nullptr; block = block->parent) {
      if (block->known.contains(name)) return block->level;
    }
    return std::nullopt;
  }
  std::optional<int> FindOutside(const std::string& name) const {
    return parent == nullptr ? std::nullopt : parent->Find(name);
  }

  void Store(const std::string& name) {
    stored.insert(name);
    if (known.contains(name)) return;
    const auto outer = FindOutside(name);
    known[name] = outer ? Known{Load::Kind::kAlias, *outer} : Known{Load::Kind::kUnset};
  }
  void Declare(const std::string& name) {
    stored.insert(name);
    known[name] = {Load::Kind::kParameter};
  }
  void Mention(const std::string& name) {
    if (!Find(name)) known[name] = {Load::Kind::kExternal};
  }

  // After `if`: what only some of the branches assign to may keep the value from outside.
  void Join(const std::vector<Symbols>& branches) {
    std::set<std::string> in_branches;
    for (const Symbols& branch : branches) {
      for (const std::string& name : branch.stored) {
        if (!stored.contains(name)) in_branches.insert(name);
      }
    }
    for (const Symbols& branch : branches) {
      for (const auto& [name, how] : branch.known) known[name] = how;
      stored.insert(branch.stored.begin(), branch.stored.end());
    }
    for (const std::string& name : in_branches) {
      const auto outer = FindOutside(name);
      known[name] = outer ? Known{Load::Kind::kAlias, *outer} : Known{Load::Kind::kExternal};
    }
  }

  const Symbols* parent;
  int level;
  std::map<std::string, Known> known;
  std::set<std::string> stored;
};

// Finds the variables of a block, without those of blocks inside of it.
class Analyzer {
 public:
  Analyzer(Symbols& symbols, int64_t& work) : symbols_(&symbols), work_(work) {}

  void Visit(const ExprPtr& expr, Use use = Use::kLoad) {
    if (expr == nullptr) return;
    if (expr->kind == Expr::Kind::kName) {
      if (use == Use::kLoad) symbols_->Mention(expr->name);
      if (use == Use::kStore) symbols_->Store(expr->name);
      if (use == Use::kParameter) symbols_->Declare(expr->name);
      return;
    }
    if (expr->kind == Expr::Kind::kAttributeOfNamespace) return symbols_->Mention(expr->name);
    for (const ExprPtr& part : expr->parts) Visit(part, use);
    for (const auto& [name, value] : expr->keywords) Visit(value);
    Visit(expr->star);
    Visit(expr->star_star);
  }
  void Visit(const std::vector<ExprPtr>& exprs, Use use = Use::kLoad) {
    for (const ExprPtr& expr : exprs) Visit(expr, use);
  }
  void Visit(const Body& body) {
    for (const StmtPtr& stmt : body) Visit(*stmt);
  }

 private:
  void Visit(const Stmt& stmt) {
    switch (stmt.kind) {
      case Stmt::Kind::kOutput:
        return Visit(stmt.parts);
      case Stmt::Kind::kIf:
        return VisitIf(stmt, 0);
      case Stmt::Kind::kSet:
        Visit(stmt.value);
        return Visit(stmt.target, Use::kStore);
      case Stmt::Kind::kSetBlock:
      case Stmt::Kind::kMacro:
        return Visit(stmt.target, Use::kStore);
      case Stmt::Kind::kFor:
      case Stmt::Kind::kCallBlock:
      case Stmt::Kind::kFilterBlock:
        return Visit(stmt.value);
      case Stmt::Kind::kWith:
        return Visit(stmt.values);
      default:
        return;
    }
  }

  void VisitIf(const Stmt& stmt, size_t branch) {
    Visit(stmt.branches[branch].test);
    Symbols* const before = symbols_;
    work_ -= static_cast<int64_t>(before->known.size());
    if (work_ < 0) return;
    const auto visited = [&](const auto& visit) {
      Symbols copy = *before;
      symbols_ = &copy;
      visit();
      symbols_ = before;
      return copy;
    };
    std::vector<Symbols> branches;
    branches.push_back(visited([&] { Visit(stmt.branches[branch].body); }));
    // Each `elif` is an `if` in a list of their own.
    branches.push_back(visited([&] {
      if (branch > 0) return;
      for (size_t i = 1; i < stmt.branches.size(); ++i) VisitIf(stmt, i);
    }));
    branches.push_back(visited([&] {
      if (branch == 0) Visit(stmt.body);
    }));
    before->Join(branches);
  }

  Symbols* symbols_;
  int64_t& work_;  // names that may still be copied
};

// Which of some names a block reads before it assigns to them, blocks inside of it included.
class Mentions {
 public:
  explicit Mentions(std::set<std::string> names) : names_(std::move(names)) {}
  const std::set<std::string>& found() const { return found_; }

  void Visit(const Body& body) {
    for (const StmtPtr& stmt : body) Visit(*stmt);
  }

 private:
  void Visit(const ExprPtr& expr, bool is_load = true) {
    if (expr == nullptr) return;
    if (expr->kind == Expr::Kind::kName) {
      if (is_load && names_.contains(expr->name)) {
        found_.insert(expr->name);
      } else {
        names_.erase(expr->name);
      }
      return;
    }
    for (const ExprPtr& part : expr->parts) Visit(part, is_load);
    for (const auto& [name, value] : expr->keywords) Visit(value);
    Visit(expr->star);
    Visit(expr->star_star);
  }

  void Visit(const Stmt& stmt) {
    const bool has_targets =
        stmt.kind == Stmt::Kind::kMacro || stmt.kind == Stmt::Kind::kCallBlock || stmt.kind == Stmt::Kind::kWith;
    if (stmt.kind == Stmt::Kind::kCallBlock) Visit(stmt.value);
    if (stmt.kind == Stmt::Kind::kFilterBlock) Visit(stmt.body);
    if (stmt.kind != Stmt::Kind::kMacro) Visit(stmt.target, /*is_load=*/false);
    for (const ExprPtr& part : stmt.parts) Visit(part, !has_targets);
    for (const ExprPtr& value : stmt.values) Visit(value);
    if (stmt.kind != Stmt::Kind::kCallBlock) Visit(stmt.value);
    for (const Branch& branch : stmt.branches) {
      Visit(branch.test);
      Visit(branch.body);
    }
    if (stmt.kind != Stmt::Kind::kFilterBlock) Visit(stmt.body);
    Visit(stmt.otherwise);
    Visit(stmt.test);
  }

  std::set<std::string> names_;
  std::set<std::string> found_;
};

// A function while it is resolved: which variable has which place in its frame.
struct Places {
  Places* outer;
  int base_level;
  Function* function;
  std::map<std::pair<int, std::string>, int32_t> indexes = {};
};

// Where a statement stands.
struct Block {
  Symbols* symbols;
  Places* places;
  bool below_if = false;   // where filters may be missing
  bool in_loop = false;    // where `break` may stand
  bool below_for = false;  // where "loop" may not be assigned to
};

class Resolver {
 public:
  explicit Resolver(Program& program) : program_(program) {}

  absl::Status Run() {
    Symbols symbols(nullptr);
    Analyzer(symbols, work_).Visit(program_.body);
    Places places{nullptr, 0, &program_.function};
    program_.function.is_captured = true;
    const Block block{&symbols, &places};
    program_.scope = ScopeOf(block);
    TDOCK_RETURN_IF_ERROR(Resolve(program_.body, block));
    if (work_ >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError("the template has too many variables and conditions together");
  }

 private:
  Slot SlotOf(const Block& block, int level, const std::string& name) {
    Slot slot;
    Places* places = block.places;
    for (; places->base_level > level; places = places->outer) ++slot.hops;
    const auto [found, is_new] = places->indexes.try_emplace({level, name}, places->function->slots);
    if (is_new) ++places->function->slots;
    slot.index = found->second;
    return slot;
  }
  Slot SlotOf(const Block& block, const std::string& name) {
    const auto level = block.symbols->Find(name);
    if (!level && work_ < 0) return {};  // the analysis ended early, and the template is refused
    TDOCK_CHECK(level.has_value(), "a variable that no block knows");
    return SlotOf(block, *level, name);
  }

  int32_t External(const std::string& name) {
    const auto [found, is_new] = externals_.try_emplace(name, static_cast<int32_t>(program_.externals.size()));
    if (is_new) program_.externals.push_back(name);
    return found->second;
  }

  // How the variables of a block begin.
  Scope ScopeOf(const Block& block) {
    Scope scope;
    for (const auto& [name, how] : block.symbols->known) {
      Load load{.kind = how.load, .target = SlotOf(block, block.symbols->level, name), .source = {}};
      if (how.load == Load::Kind::kAlias) load.source = SlotOf(block, how.alias_level, name);
      if (how.load == Load::Kind::kExternal) load.external = External(name);
      scope.loads.push_back(load);
    }
    return scope;
  }

  absl::Status Resolve(const ExprPtr& expr, Block block, bool is_target = false) {
    if (expr == nullptr) return absl::OkStatus();
    if (expr->kind == Expr::Kind::kName || expr->kind == Expr::Kind::kAttributeOfNamespace) {
      if (is_target && block.below_for && expr->kind == Expr::Kind::kName && expr->name == "loop") {
        return ErrorAtLine(expr->line, "the variable loop of a {% for %} cannot be assigned to");
      }
      expr->slot = SlotOf(block, expr->name);
      return absl::OkStatus();
    }
    const bool is_missing = (expr->kind == Expr::Kind::kFilter && expr->filter == nullptr) ||
                            (expr->kind == Expr::Kind::kTest && expr->predicate == nullptr);
    if (is_missing && !block.below_if) {
      return ErrorAtLine(expr->line, absl::StrCat("there is no ", expr->kind == Expr::Kind::kFilter ? "filter" : "test",
                                                  " called ", Quoted(expr->name)));
    }
    if (expr->kind == Expr::Kind::kConditional) block.below_if = true;
    for (const ExprPtr& part : expr->parts) TDOCK_RETURN_IF_ERROR(Resolve(part, block, is_target));
    for (const auto& [name, value] : expr->keywords) TDOCK_RETURN_IF_ERROR(Resolve(value, block));
    TDOCK_RETURN_IF_ERROR(Resolve(expr->star, block));
    return Resolve(expr->star_star, block);
  }

  absl::Status Resolve(const std::vector<ExprPtr>& exprs, const Block& block) {
    for (const ExprPtr& expr : exprs) TDOCK_RETURN_IF_ERROR(Resolve(expr, block));
    return absl::OkStatus();
  }

  absl::Status Resolve(const Body& body, const Block& block) {
    for (const StmtPtr& stmt : body) TDOCK_RETURN_IF_ERROR(Resolve(*stmt, block));
    return absl::OkStatus();
  }

  absl::Status Resolve(Stmt& stmt, const Block& block) {
    switch (stmt.kind) {
      case Stmt::Kind::kOutput:
        return Resolve(stmt.parts, block);
      case Stmt::Kind::kFor:
        return ResolveFor(stmt, block);
      case Stmt::Kind::kIf:
        return ResolveIf(stmt, block);
      case Stmt::Kind::kSet:
        TDOCK_RETURN_IF_ERROR(Resolve(stmt.value, block));
        return Resolve(stmt.target, block, /*is_target=*/true);
      case Stmt::Kind::kMacro:
        stmt.slot = SlotOf(block, stmt.name);
        return ResolveFunction(stmt, block);
      case Stmt::Kind::kCallBlock:
        TDOCK_RETURN_IF_ERROR(ResolveFunction(stmt, block));
        return Resolve(stmt.value, block);
      case Stmt::Kind::kGeneration:
        return ResolveFunction(stmt, block);
      case Stmt::Kind::kSetBlock:
      case Stmt::Kind::kFilterBlock:
      case Stmt::Kind::kWith:
      case Stmt::Kind::kScope:
        return ResolveBlock(stmt, block);
      case Stmt::Kind::kBreak:
      case Stmt::Kind::kContinue:
        if (block.in_loop) return absl::OkStatus();
        return ErrorAtLine(stmt.line, absl::StrCat("{% ", stmt.kind == Stmt::Kind::kBreak ? "break" : "continue",
                                                   " %} stands outside of a loop"));
    }
    return absl::OkStatus();
  }

  absl::Status ResolveIf(Stmt& stmt, Block block) {
    block.below_if = true;
    for (const Branch& branch : stmt.branches) {
      TDOCK_RETURN_IF_ERROR(Resolve(branch.test, block));
      TDOCK_RETURN_IF_ERROR(Resolve(branch.body, block));
    }
    return Resolve(stmt.body, block);
  }

  // A block without a frame.
  absl::Status ResolveBlock(Stmt& stmt, const Block& outer) {
    Symbols symbols(outer.symbols);
    Analyzer analyzer(symbols, work_);
    if (stmt.kind == Stmt::Kind::kWith) analyzer.Visit(stmt.parts, Use::kParameter);
    analyzer.Visit(stmt.body);
    if (stmt.kind != Stmt::Kind::kWith) analyzer.Visit(stmt.value);
    Block block = outer;
    block.symbols = &symbols;
    block.below_if = false;
    stmt.scope = ScopeOf(block);
    TDOCK_RETURN_IF_ERROR(Resolve(stmt.values, outer));
    TDOCK_RETURN_IF_ERROR(Resolve(stmt.parts, block));
    TDOCK_RETURN_IF_ERROR(Resolve(stmt.body, block));
    TDOCK_RETURN_IF_ERROR(Resolve(stmt.value, block));
    return Resolve(stmt.target, outer, /*is_target=*/true);
  }

  // What is called: a macro, the body of a call, of {% generation %}.
  absl::Status ResolveFunction(Stmt& stmt, const Block& outer) {
    Symbols symbols(outer.symbols);
    Analyzer analyzer(symbols, work_);
    analyzer.Visit(stmt.parts, Use::kParameter);
    analyzer.Visit(stmt.values);
    analyzer.Visit(stmt.body);
    outer.places->function->is_captured = true;
    Places places{outer.places, symbols.level, &stmt.function};
    const Block block{.symbols = &symbols, .places = &places, .below_for = outer.below_for};

    Mentions special({"caller", "kwargs", "varargs"});
    special.Visit(stmt.body);
    const auto parameter = [&](const std::string& name) {
      const auto named = [&](const ExprPtr& part) { return part->name == name; };
      return std::find_if(stmt.parts.begin(), stmt.parts.end(), named) - stmt.parts.begin();
    };
    const auto parameters = static_cast<std::ptrdiff_t>(stmt.parts.size());
    const auto declared = [&](const std::string& name) -> Slot {
      if (!special.found().contains(name) || parameter(name) < parameters) return {};
      symbols.Declare(name);
      return SlotOf(block, name);
    };
    if (special.found().contains("caller") &&
        parameter("caller") < parameters - static_cast<std::ptrdiff_t>(stmt.values.size())) {
      return ErrorAtLine(stmt.line, "the parameter caller must be omitted or have a default");
    }
    stmt.caller = declared("caller");
    stmt.keyword_arguments = declared("kwargs");
    stmt.more_arguments = declared("varargs");
    stmt.scope = ScopeOf(block);
    TDOCK_RETURN_IF_ERROR(Resolve(stmt.parts, block));
    TDOCK_RETURN_IF_ERROR(Resolve(stmt.values, block));
    return Resolve(stmt.body, block);
  }

  absl::Status ResolveFor(Stmt& loop, const Block& outer) {
    TDOCK_RETURN_IF_ERROR(Resolve(loop.value, outer));
    Symbols symbols(outer.symbols);
    Places own{outer.places, symbols.level, &loop.function};
    if (loop.is_recursive) outer.places->function->is_captured = true;
    Block block{
        .symbols = &symbols, .places = loop.is_recursive ? &own : outer.places, .in_loop = true, .below_for = true};
    Mentions mentions({"loop"});
    mentions.Visit(loop.body);
    const bool is_extended = loop.is_recursive || !mentions.found().empty();
    if (is_extended) symbols.Declare("loop");
    Analyzer analyzer(symbols, work_);
    analyzer.Visit(loop.target, Use::kParameter);
    analyzer.Visit(loop.body);
    if (loop.test != nullptr) TDOCK_RETURN_IF_ERROR(ResolveTest(loop, outer, *block.places));
    if (is_extended) loop.slot = SlotOf(block, "loop");
    loop.scope = ScopeOf(block);
    TDOCK_RETURN_IF_ERROR(Resolve(loop.target, block, /*is_target=*/true));
    TDOCK_RETURN_IF_ERROR(Resolve(loop.body, block));

    Symbols else_symbols(outer.symbols);
    Analyzer(else_symbols, work_).Visit(loop.otherwise);
    block.symbols = &else_symbols;
    block.in_loop = outer.in_loop && !loop.is_recursive;
    loop.else_scope = ScopeOf(block);
    return Resolve(loop.otherwise, block);
  }

  // The test is a function: it runs ahead of the body where that asks for the next item.
  absl::Status ResolveTest(Stmt& loop, const Block& outer, Places& around) {
    Symbols symbols(outer.symbols);
    Analyzer analyzer(symbols, work_);
    analyzer.Visit(loop.target, Use::kParameter);
    analyzer.Visit(loop.test);
    around.function->is_captured = true;
    Places places{&around, symbols.level, &loop.test_function};
    const Block block{.symbols = &symbols, .places = &places, .below_for = true};
    loop.test_scope = ScopeOf(block);
    TDOCK_RETURN_IF_ERROR(Resolve(loop.test, block));
    AddTargets(loop.target, block, loop.test_targets);
    return absl::OkStatus();
  }

  void AddTargets(const ExprPtr& target, const Block& block, std::vector<Slot>& slots) {
    if (target->kind == Expr::Kind::kName) slots.push_back(SlotOf(block, target->name));
    for (const ExprPtr& part : target->parts) AddTargets(part, block, slots);
  }

  Program& program_;
  std::map<std::string, int32_t> externals_;
  int64_t work_ = 10'000'000;
};

}  // namespace

absl::Status ResolveVariables(Program& program) { return Resolver(program).Run(); }

}  // namespace tdock::jinja
