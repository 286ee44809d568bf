#include "inference/protocol/problem.h"

#include "core/base/json_text.h"

namespace tdock::inference {

std::string BodyOf(const Problem& problem) {
  using OrderedJson = nlohmann::ordered_json;
  const auto or_null = [](const std::string& text) { return text.empty() ? OrderedJson(nullptr) : OrderedJson(text); };
  const OrderedJson json = {{"error",
                             {{"message", problem.message},
                              {"type", problem.type},
                              {"param", or_null(problem.param)},
                              {"code", or_null(problem.code)}}}};
  return JsonText(json);
}

}  // namespace tdock::inference
