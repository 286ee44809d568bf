// How a template takes the calls of tools. Internal to this module.
//
//   Qwen:      {"name": "f", "arguments": {{ call.function.arguments | tojson }}}    an object
//   DeepSeek:  '```json\n' + call['function']['arguments'] + '\n```'                 the JSON text of one
//
// Text in place of the object would be quoted by the first, and an object stops the second.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "text/jinja/template.h"

namespace tdock::text {

struct CallForm {
  // The content of a turn that only calls tools.
  enum class NoContent {
    kAsGiven,
    kNone,    // none, as where a template asks "content is none"
    kEmpty,   // an empty text, as where it joins the content with texts
    kMissing  // no key at all
  } no_content = NoContent::kAsGiven;
  bool arguments_as_text = false;       // the template needs JSON text
  bool renders_other_text = true;       // it writes arguments that are text as they are
  bool renders_whole_calls = true;      // it writes calls with all their keys
  bool renders_whole_functions = true;  // likewise
};

// Renders a conversation with a call in each form, and returns the first one in which the template writes the name and
// the arguments as they are. The default form if there is none. Takes a bounded number of steps.
CallForm FindCallForm(const jinja::Template& program);

// Brings the list "tool_calls" into the form. InvalidArgument for what a template with the name `title` would leave out
// or write otherwise; `mentions` says whether it mentions a key.
absl::Status ShapeCalls(const CallForm& form, absl::string_view title,
                        absl::FunctionRef<bool(absl::string_view)> mentions, nlohmann::ordered_json& calls);

// The texts of each call by which it is known in a rendered conversation: the beginnings of its function's name and of
// its id.
std::vector<std::vector<std::string>> NamesOfCalls(const nlohmann::ordered_json& calls);

// True if the text shows each call by one of its names, in their order.
bool ShowsCalls(const std::vector<std::vector<std::string>>& calls, absl::string_view text);

}  // namespace tdock::text
