// Runs a program. Internal to this module.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/object.h"
#include "text/jinja/syntax.h"
#include "text/jinja/template.h"

namespace tdock::jinja {

// Of one render. Not thread-safe.
class Interpreter final : public Machine {
 public:
  Interpreter(const Program& program, const RenderOptions& options)
      : Machine(program.limits, options),
        program_(program),
        output_bytes_(std::min(program.limits.output_bytes, options.output_bytes)) {}
  ~Interpreter() override;

  absl::StatusOr<Text> Run(const Template::Inputs& inputs);
  absl::StatusOr<Value> Call(const Value& callee, Arguments arguments) override;

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Activation;
  class Capture;
  class Tested;

  // Statements (statements.cc).
  absl::StatusOr<Flow> Execute(const Body& body);
  absl::StatusOr<Flow> Execute(const Stmt& stmt);
  absl::StatusOr<Flow> ExecuteStmt(const Stmt& stmt);
  absl::StatusOr<Flow> ExecuteOutput(const Stmt& stmt);
  absl::StatusOr<Flow> ExecuteIf(const Stmt& stmt);
  absl::StatusOr<Flow> ExecuteSet(const Stmt& stmt);
  absl::StatusOr<Flow> ExecuteBuffered(const Stmt& stmt);
  absl::StatusOr<Flow> ExecuteWith(const Stmt& stmt);
  absl::StatusOr<Flow> ExecuteScope(const Stmt& stmt);
  absl::StatusOr<Flow> ExecuteCallBlock(const Stmt& stmt);
  absl::StatusOr<Flow> ExecuteGeneration(const Stmt& stmt);
  absl::StatusOr<Flow> ExecuteFor(const Stmt& stmt);
  absl::StatusOr<Flow> RunLoop(const Stmt& stmt, const Value& iterable, int64_t depth0, Frame* around);
  absl::StatusOr<bool> RunItem(const Stmt& stmt, const Value& item, Loop* loop, bool& is_unvisited);
  absl::StatusOr<Text> RunRecursive(const Stmt& stmt, const Value& iterable, int64_t depth0, Frame* around);
  absl::StatusOr<Value> CallMacro(const Macro& macro, Arguments& arguments);
  absl::Status BindMacro(const Stmt& stmt, Arguments& arguments);
  absl::Status Assign(const Expr& target, Value value);
  absl::Status CheckNamespaces(const Expr& target);
  void Enter(const Scope& scope);
  void Leave(const Scope& scope);
  absl::Status Emit(const Value& value);
  absl::Status EmitString(const Value& value);
  void EmitText(const Text& text);

  // Expressions (expressions.cc).
  absl::StatusOr<Value> Evaluate(const Expr& expr);
  absl::StatusOr<Value> EvaluateExpr(const Expr& expr);
  absl::StatusOr<Value> EvaluateItems(const Expr& expr);
  absl::StatusOr<Value> EvaluateDict(const Expr& expr);
  absl::StatusOr<Value> EvaluateConditional(const Expr& expr);
  absl::StatusOr<Value> EvaluateComparison(const Expr& expr);
  absl::StatusOr<Value> EvaluateConcat(const Expr& expr);
  absl::StatusOr<Value> EvaluateItem(const Expr& expr);
  absl::StatusOr<Value> EvaluateCall(const Expr& expr, const Value* caller);
  absl::StatusOr<Value> EvaluateFilter(const Expr& expr);
  absl::StatusOr<Value> EvaluateTest(const Expr& expr);
  absl::StatusOr<Arguments> EvaluateArguments(const Expr& expr);
  Value NameValue(const Expr& expr);

  Value& At(Slot slot) {
    Frame* frame = frame_;
    for (; slot.hops > 0; --slot.hops) frame = frame->outer;
    return frame->slots[static_cast<size_t>(slot.index)];
  }
  absl::Status Locate(const absl::Status& status, int32_t line);

  const Program& program_;
  const size_t output_bytes_;
  std::vector<Value> externals_;
  std::vector<std::unique_ptr<Frame>> frames_;  // that functions inside of them may still see
  Frame* frame_ = nullptr;
  Text document_;
  Text* out_ = &document_;
  Value block_text_;  // what the filter of a block is applied to
  int32_t mark_ = -1;
  int32_t generation_ = -1;
  int32_t generations_ = 0;
  int calls_ = 0;
  bool is_located_ = false;
};

}  // namespace tdock::jinja
