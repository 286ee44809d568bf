#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/compare.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lookup.h"
#include "text/jinja/node.h"
#include "text/jinja/repr.h"

namespace tdock::jinja {

// Makes the frame of a function the current one while it lives.
class Interpreter::Activation {
 public:
  Activation(Interpreter& machine, const Function& function, Frame* outer)
      : machine_(machine), before_(machine.frame_) {
    if (function.is_captured) {
      machine.meter().Hold(sizeof(Frame) + static_cast<size_t>(function.slots) * sizeof(Value));
      machine.frames_.push_back(std::make_unique<Frame>());
      frame_ = machine.frames_.back().get();
    }
    machine.SpendItems(static_cast<size_t>(function.slots));
    frame_->outer = outer;
    frame_->slots.assign(static_cast<size_t>(function.slots), Value::Missing());
    machine.frame_ = frame_;
  }
  ~Activation() { machine_.frame_ = before_; }
  Activation(const Activation&) = delete;
  Activation& operator=(const Activation&) = delete;
  Frame* frame() const { return frame_; }

 private:
  Interpreter& machine_;
  Frame* const before_;
  Frame own_;
  Frame* frame_ = &own_;
};

// Collects what is put out while it lives.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& machine) : machine_(machine), before_(machine.out_) { machine.out_ = &text_; }
  ~Capture() {
    machine_.out_ = before_;
    machine_.meter().LetGo(held_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  Text Take() {
    held_ = text_.memory_bytes();
    return std::move(text_);
  }

 private:
  Interpreter& machine_;
  Text* const before_;
  Text text_;
  size_t held_ = 0;
};

// The items of a loop that its test lets through.
class Interpreter::Tested final : public Generator {
 public:
  Tested(const Stmt& loop, Iteration items, Frame* frame) : loop_(loop), items_(std::move(items)), frame_(frame) {}

  absl::StatusOr<std::optional<Value>> Next(Machine& machine) override {
    auto& interpreter = static_cast<Interpreter&>(machine);
    Frame* const before = interpreter.frame_;
    while (true) {
      TDOCK_ASSIGN_OR_RETURN(auto item, items_.Next(machine));
      if (!item) return std::nullopt;
      size_t target = 0;
      interpreter.frame_ = frame_;
      absl::StatusOr<Value> yielded = Assigned(interpreter, *loop_.target, *item, target);
      absl::StatusOr<Value> test = yielded.ok() ? interpreter.Evaluate(*loop_.test) : yielded;
      interpreter.frame_ = before;
      TDOCK_RETURN_IF_ERROR(test.status());
      if (IsTrue(*test)) return *std::move(yielded);
    }
  }

 private:
  // What the targets together are, as the test has them.
  absl::StatusOr<Value> Assigned(Interpreter& machine, const Expr& target, const Value& item, size_t& next) {
    if (target.kind != Expr::Kind::kTuple) {
      machine.At(loop_.test_targets[next++]) = item;
      return item;
    }
    TDOCK_ASSIGN_OR_RETURN(std::vector<Value> items, Unpack(machine, item, target.parts.size()));
    for (size_t i = 0; i < items.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(items[i], Assigned(machine, *target.parts[i], items[i], next));
    }
    return machine.Tuple(std::move(items));
  }

  friend class Interpreter;
  static absl::StatusOr<std::vector<Value>> Unpack(Machine& machine, const Value& value, size_t wanted) {
    TDOCK_ASSIGN_OR_RETURN(std::vector<Value> items, ItemsOf(machine, value));
    if (items.size() == wanted) return items;
    return absl::InvalidArgumentError(
        absl::StrCat("cannot assign ", items.size(), " values to ", wanted, " variables"));
  }

  const Stmt& loop_;
  Iteration items_;
  Frame* const frame_;
};

Interpreter::~Interpreter() = default;

absl::StatusOr<Text> Interpreter::Run(const Template::Inputs& inputs) {
  for (const std::string& name : program_.externals) {
    Value value = Value::Missing();
    for (const auto& [input, given] : inputs) {
      if (input == name) value = given;
    }
    const Builtin::Call builtin = FindBuiltin(name);
    if (value.kind() == Value::Kind::kMissing && builtin != nullptr) value = NewValue<Builtin>(name, builtin);
    // Jinja's `self` has the blocks of a template, of which there are none.
    if (value.kind() == Value::Kind::kMissing && name == "self") value = Value::Dict({});
    externals_.push_back(std::move(value));
  }
  const Activation activation(*this, program_.function, nullptr);
  Enter(program_.scope);
  TDOCK_RETURN_IF_ERROR(Execute(program_.body).status());
  return std::move(document_);
}

void Interpreter::Enter(const Scope& scope) {
  meter().Spend(static_cast<int64_t>(scope.loads.size()));
  for (const Load& load : scope.loads) {
    switch (load.kind) {
      case Load::Kind::kExternal:
        At(load.target) = externals_[static_cast<size_t>(load.external)];
        break;
      case Load::Kind::kAlias:
        At(load.target) = Value(At(load.source));
        break;
      case Load::Kind::kUnset:
        At(load.target) = Value::Missing();
        break;
      case Load::Kind::kParameter:
        break;
    }
  }
}

void Interpreter::Leave(const Scope& scope) {
  for (const Load& load : scope.loads) At(load.target) = Value::Missing();
}

void Interpreter::EmitText(const Text& text) {
  if (text.empty()) return;
  const size_t before = out_->memory_bytes();
  out_->AppendStamped(text, mark_, generation_);
  meter().Hold(out_->memory_bytes() - before);
  meter().Spend(1);
  meter().SpendBytes(text.size());
  if (out_ == &document_ && document_.size() > output_bytes_) meter().FailOutput(output_bytes_);
}

absl::Status Interpreter::Emit(const Value& value) {
  if (value.is_text()) {
    EmitText(value.AsText());
    return absl::OkStatus();
  }
  TDOCK_ASSIGN_OR_RETURN(const Text text, Str(*this, value));
  EmitText(text);
  return absl::OkStatus();
}

// The result of a block, which Jinja does not make a string of.
absl::Status Interpreter::EmitString(const Value& value) {
  if (value.is_text()) return Emit(value);
  return absl::InvalidArgumentError(absl::StrCat(
      "the filter or call of a block must result in a string, not in a value of the type ", TypeName(value)));
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Body& body) {
  for (const StmtPtr& stmt : body) {
    TDOCK_ASSIGN_OR_RETURN(const Flow flow, Execute(*stmt));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Stmt& stmt) {
  meter().Spend(1);
  const Level level(*this);
  if (level.is_too_deep()) return Locate(TooDeep(), stmt.line);
  absl::StatusOr<Flow> flow = ExecuteStmt(stmt);
  if (!flow.ok()) [[unlikely]]
    return Locate(flow.status(), stmt.line);
  if (meter().failed()) [[unlikely]]
    return Locate(meter().status(), stmt.line);
  return flow;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteStmt(const Stmt& stmt) {
  switch (stmt.kind) {
    case Stmt::Kind::kOutput:
      return ExecuteOutput(stmt);
    case Stmt::Kind::kFor:
      return ExecuteFor(stmt);
    case Stmt::Kind::kIf:
      return ExecuteIf(stmt);
    case Stmt::Kind::kSet:
      return ExecuteSet(stmt);
    case Stmt::Kind::kMacro:
      At(stmt.slot) = NewValue<Macro>(stmt, frame_);
      return Flow::kNormal;
    case Stmt::Kind::kCallBlock:
      return ExecuteCallBlock(stmt);
    case Stmt::Kind::kGeneration:
      return ExecuteGeneration(stmt);
    case Stmt::Kind::kSetBlock:
    case Stmt::Kind::kFilterBlock:
      return ExecuteBuffered(stmt);
    case Stmt::Kind::kWith:
      return ExecuteWith(stmt);
    case Stmt::Kind::kScope:
      return ExecuteScope(stmt);
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteOutput(const Stmt& stmt) {
  for (const ExprPtr& part : stmt.parts) {
    if (part->kind == Expr::Kind::kConstant && part->constant.is_text()) {
      EmitText(part->constant.AsText());
      continue;
    }
    TDOCK_ASSIGN_OR_RETURN(const Value value, Evaluate(*part));
    TDOCK_RETURN_IF_ERROR(Emit(value));
  }
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteIf(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    TDOCK_ASSIGN_OR_RETURN(const Value test, Evaluate(*branch.test));
    if (IsTrue(test)) return Execute(branch.body);
  }
  return Execute(stmt.body);
}

absl::Status Interpreter::CheckNamespaces(const Expr& target) {
  if (target.kind == Expr::Kind::kAttributeOfNamespace &&
      As<Namespace>(At(target.slot), Object::Type::kNamespace) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("an attribute of ", Quoted(target.name), " cannot be assigned to: it is no namespace"));
  }
  for (const ExprPtr& part : target.parts) TDOCK_RETURN_IF_ERROR(CheckNamespaces(*part));
  return absl::OkStatus();
}

absl::Status Interpreter::Assign(const Expr& target, Value value) {
  if (target.kind == Expr::Kind::kName) {
    At(target.slot) = std::move(value);
    return absl::OkStatus();
  }
  if (target.kind == Expr::Kind::kAttributeOfNamespace) {
    auto* const space = As<Namespace>(At(target.slot), Object::Type::kNamespace);
    const absl::string_view name = target.constant.AsText().bytes();
    if (space == nullptr) return CheckNamespaces(target);
    if (absl::StartsWith(name, "_")) {
      return absl::InvalidArgumentError(
          absl::StrCat("the attribute ", Quoted(name), " of a namespace must not begin with an underscore"));
    }
    if (Value* const known = space->Find(*this, name)) {
      *known = std::move(value);
    } else {
      meter().Hold(sizeof(Value::Pairs::value_type));
      space->attributes.emplace_back(target.constant, std::move(value));
    }
    return absl::OkStatus();
  }
  TDOCK_ASSIGN_OR_RETURN(std::vector<Value> items, Tested::Unpack(*this, value, target.parts.size()));
  for (size_t i = 0; i < items.size(); ++i) TDOCK_RETURN_IF_ERROR(Assign(*target.parts[i], std::move(items[i])));
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteSet(const Stmt& stmt) {
  TDOCK_RETURN_IF_ERROR(CheckNamespaces(*stmt.target));
  TDOCK_ASSIGN_OR_RETURN(Value value, Evaluate(*stmt.value));
  TDOCK_RETURN_IF_ERROR(Assign(*stmt.target, std::move(value)));
  return Flow::kNormal;
}

// {% set %} of a block, and {% filter %}.
absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteBuffered(const Stmt& stmt) {
  Enter(stmt.scope);
  Value text;
  Flow flow = Flow::kNormal;
  {
    Capture capture(*this);
    TDOCK_ASSIGN_OR_RETURN(flow, Execute(stmt.body));
    text = String(capture.Take());
  }
  if (flow != Flow::kNormal) {  // out of a loop around: what was collected goes nowhere
    Leave(stmt.scope);
    return flow;
  }
  if (stmt.value != nullptr) {
    std::swap(block_text_, text);
    absl::StatusOr<Value> filtered = Evaluate(*stmt.value);
    std::swap(block_text_, text);
    TDOCK_ASSIGN_OR_RETURN(text, std::move(filtered));
  }
  if (stmt.kind == Stmt::Kind::kFilterBlock) {
    TDOCK_RETURN_IF_ERROR(EmitString(text));
  } else {
    TDOCK_RETURN_IF_ERROR(CheckNamespaces(*stmt.target));
    TDOCK_RETURN_IF_ERROR(Assign(*stmt.target, std::move(text)));
  }
  Leave(stmt.scope);
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteWith(const Stmt& stmt) {
  Enter(stmt.scope);
  for (size_t i = 0; i < stmt.parts.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(Value value, Evaluate(*stmt.values[i]));
    TDOCK_RETURN_IF_ERROR(Assign(*stmt.parts[i], std::move(value)));
  }
  TDOCK_ASSIGN_OR_RETURN(const Flow flow, Execute(stmt.body));
  Leave(stmt.scope);
  return flow;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteScope(const Stmt& stmt) {
  Enter(stmt.scope);
  TDOCK_ASSIGN_OR_RETURN(const Flow flow, Execute(stmt.body));
  Leave(stmt.scope);
  return flow;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteCallBlock(const Stmt& stmt) {
  const Value caller = NewValue<Macro>(stmt, frame_);
  TDOCK_ASSIGN_OR_RETURN(const Value text, EvaluateCall(*stmt.value, &caller));
  TDOCK_RETURN_IF_ERROR(EmitString(text));
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteGeneration(const Stmt& stmt) {
  Text text;
  {
    const Activation activation(*this, stmt.function, frame_);
    const int32_t before = std::exchange(generation_, generations_++);
    Enter(stmt.scope);
    Capture capture(*this);
    TDOCK_RETURN_IF_ERROR(Execute(stmt.body).status());
    text = capture.Take();
    generation_ = before;
  }
  EmitText(text);
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteFor(const Stmt& stmt) {
  TDOCK_ASSIGN_OR_RETURN(const Value iterable, Evaluate(*stmt.value));
  if (!stmt.is_recursive) return RunLoop(stmt, iterable, 0, frame_);
  TDOCK_ASSIGN_OR_RETURN(const Text text, RunRecursive(stmt, iterable, 0, frame_));
  EmitText(text);
  return Flow::kNormal;
}

absl::StatusOr<Text> Interpreter::RunRecursive(const Stmt& stmt, const Value& iterable, int64_t depth0, Frame* around) {
  if (depth0 > program_.limits.depth) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a recursive loop calls itself more than ", program_.limits.depth, " levels deep"));
  }
  const Activation activation(*this, stmt.function, around);
  Capture capture(*this);
  TDOCK_RETURN_IF_ERROR(RunLoop(stmt, iterable, depth0, around).status());
  return capture.Take();
}

// The body for one item; false: the loop ends here.
absl::StatusOr<bool> Interpreter::RunItem(const Stmt& stmt, const Value& item, Loop* loop, bool& is_unvisited) {
  TDOCK_RETURN_IF_ERROR(Assign(*stmt.target, item));
  if (loop != nullptr) At(stmt.slot) = Value::OfObject(*loop);
  Enter(stmt.scope);
  const int32_t mark = item.mark();
  const int32_t before = std::exchange(mark_, mark < 0 ? mark_ : mark);
  TDOCK_ASSIGN_OR_RETURN(const Flow flow, Execute(stmt.body));
  mark_ = before;
  // As in Jinja, an item at which the loop is continued or left early does not count.
  if (flow == Flow::kNormal) is_unvisited = false;
  return flow != Flow::kBreak;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunLoop(const Stmt& stmt, const Value& iterable, int64_t depth0,
                                                       Frame* around) {
  TDOCK_ASSIGN_OR_RETURN(Iteration items, Iteration::Over(iterable));
  if (stmt.test != nullptr) {
    Frame* frame = nullptr;
    {
      Function function = stmt.test_function;
      function.is_captured = true;
      const Activation activation(*this, function, frame_);
      Enter(stmt.test_scope);
      frame = activation.frame();
    }
    TDOCK_ASSIGN_OR_RETURN(items, Iteration::Over(NewValue<Tested>(stmt, std::move(items), frame)));
  }
  Loop* loop = nullptr;
  if (stmt.slot.index >= 0) {
    loop = &New<Loop>(stmt, around);
    loop->items = std::move(items);
    loop->depth0 = depth0;
  }
  bool is_unvisited = true;
  while (true) {
    auto item = loop != nullptr ? loop->Advance(*this) : items.Next(*this);
    TDOCK_RETURN_IF_ERROR(item.status());
    if (!*item) break;
    meter().Spend(1);
    TDOCK_ASSIGN_OR_RETURN(const bool goes_on, RunItem(stmt, **item, loop, is_unvisited));
    if (!goes_on) break;
  }
  if (!stmt.is_recursive || !stmt.otherwise.empty()) Leave(stmt.scope);
  if (loop != nullptr) loop->Release(*this);
  if (!is_unvisited || stmt.otherwise.empty()) return Flow::kNormal;
  Enter(stmt.else_scope);
  TDOCK_ASSIGN_OR_RETURN(const Flow flow, Execute(stmt.otherwise));
  Leave(stmt.else_scope);
  return flow;
}

absl::StatusOr<Value> Interpreter::CallMacro(const Macro& macro, Arguments& arguments) {
  if (calls_ >= program_.limits.depth) {
    return absl::ResourceExhaustedError(
        absl::StrCat("macros call each other more than ", program_.limits.depth, " levels deep"));
  }
  ++calls_;
  Text text;
  {
    const Activation activation(*this, macro.stmt.function, macro.outer);
    Capture capture(*this);
    TDOCK_RETURN_IF_ERROR(BindMacro(macro.stmt, arguments));
    TDOCK_RETURN_IF_ERROR(Execute(macro.stmt.body).status());
    text = capture.Take();
  }
  --calls_;
  return String(std::move(text));
}

// Gives the parameters of a macro their values, in its frame.
absl::Status Interpreter::BindMacro(const Stmt& stmt, Arguments& arguments) {
  const size_t count = stmt.parts.size();
  const auto take = [&](absl::string_view name) -> std::optional<Value> {
    SpendItems(arguments.named.size());
    for (auto named = arguments.named.begin(); named != arguments.named.end(); ++named) {
      if (named->first.AsText().bytes() != name) continue;
      Value value = std::move(named->second);
      arguments.named.erase(named);
      return value;
    }
    return std::nullopt;
  };
  for (size_t i = 0; i < count; ++i) {
    if (i < arguments.positional.size()) {
      At(stmt.parts[i]->slot) = arguments.positional[i];
    } else if (auto value = take(stmt.parts[i]->name)) {
      At(stmt.parts[i]->slot) = *std::move(value);
    }
  }
  if (stmt.caller.index >= 0) {
    auto caller = take("caller");
    At(stmt.caller) =
        caller && caller->kind() != Value::Kind::kNone ? *std::move(caller) : Undefined("no caller is defined");
  }
  const std::string shown =
      stmt.kind == Stmt::Kind::kMacro ? absl::StrCat("the macro ", Quoted(stmt.name)) : "the block of a call";
  if (stmt.keyword_arguments.index >= 0) {
    At(stmt.keyword_arguments) = Dict(Value::Pairs(arguments.named.begin(), arguments.named.end()));
  } else if (!arguments.named.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, " has no parameter ", Quoted(arguments.named[0].first.AsText().bytes())));
  }
  const size_t more = std::min(count, arguments.positional.size());
  if (stmt.more_arguments.index >= 0) {
    At(stmt.more_arguments) =
        Tuple({arguments.positional.begin() + static_cast<std::ptrdiff_t>(more), arguments.positional.end()});
  } else if (arguments.positional.size() > count) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, " takes at most ", count, " arguments, not ", arguments.positional.size()));
  }
  Enter(stmt.scope);
  for (size_t i = 0; i < count; ++i) {
    if (At(stmt.parts[i]->slot).kind() != Value::Kind::kMissing) continue;
    const size_t first_default = count - stmt.values.size();
    if (i < first_default) {
      At(stmt.parts[i]->slot) = Undefined(absl::StrCat("the parameter '", stmt.parts[i]->name, "' was not given"));
      continue;
    }
    TDOCK_ASSIGN_OR_RETURN(Value value, Evaluate(*stmt.values[i - first_default]));
    At(stmt.parts[i]->slot) = std::move(value);
  }
  return absl::OkStatus();
}

}  // namespace tdock::jinja
