#include "text/jinja/template.h"

#include <algorithm>

#include "core/base/status.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"
#include "text/jinja/scopes.h"

namespace tdock::jinja {
namespace {

void AddRun(size_t end, int32_t value, std::vector<Run>& runs) {
  if (!runs.empty() && runs.back().value == value) {
    runs.back().end = end;
  } else {
    runs.push_back({end, value});
  }
}

}  // namespace

absl::StatusOr<Template> Template::Parse(absl::string_view source, const Limits& limits) {
  TDOCK_ASSIGN_OR_RETURN(Program parsed, ParseProgram(source, limits));
  auto program = std::make_shared<Program>(std::move(parsed));
  TDOCK_RETURN_IF_ERROR(ResolveVariables(*program));
  return Template(std::move(program));
}

absl::StatusOr<Rendered> Template::Render(const Inputs& inputs, const RenderOptions& options) const {
  Interpreter interpreter(*program_, options);
  absl::StatusOr<Text> made = interpreter.Run(inputs);
  if (interpreter.meter().stopped()) return interpreter.meter().status();
  TDOCK_ASSIGN_OR_RETURN(Text text, std::move(made));
  Rendered rendered;
  size_t begin = 0;
  int32_t generation = -1;
  for (const Text::Run& run : text.runs()) {
    AddRun(run.end, run.source.origin, rendered.origins);
    AddRun(run.end, run.source.mark, rendered.marks);
    if (run.source.generation >= 0) {
      if (run.source.generation == generation) {
        rendered.generations.back().end = run.end;
      } else {
        rendered.generations.push_back({begin, run.end});
      }
    }
    generation = run.source.generation;
    begin = run.end;
  }
  rendered.text = std::move(text).TakeBytes();
  return rendered;
}

bool Template::marks_generation() const { return program_->marks_generation; }

bool Template::uses(absl::string_view name) const {
  return std::find(program_->externals.begin(), program_->externals.end(), name) != program_->externals.end();
}

}  // namespace tdock::jinja
