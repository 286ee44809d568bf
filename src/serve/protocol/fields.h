// Reads the fields of a JSON object that a client has sent. Internal to this module.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "serve/protocol/problem.h"

namespace tdock::serve {

// The JSON object of a body. Absent where it is none; then the problem is there.
std::optional<nlohmann::json> ParseBody(absl::string_view body, int max_depth, std::optional<Problem>& problem);

// A field that is null counts as absent. The first problem is kept. Not thread-safe; the object must outlive it.
class Fields {
 public:
  // `within` is put before names in messages: "sampling_params.".
  Fields(const nlohmann::json& object, std::string within, std::optional<Problem>& problem)
      : object_(object), within_(std::move(within)), problem_(problem) {}

  // The value of the first of these names that is there, which Finish() then knows; null if there is none.
  const nlohmann::json* Take(std::initializer_list<absl::string_view> names);
  // Names that are known, and change nothing.
  void Ignore(std::initializer_list<absl::string_view> names);

  std::optional<double> Number(std::initializer_list<absl::string_view> names, double low, double high);
  std::optional<int64_t> Integer(std::initializer_list<absl::string_view> names, int64_t low, int64_t high);
  std::optional<bool> Bool(std::initializer_list<absl::string_view> names);
  std::optional<std::string> String(std::initializer_list<absl::string_view> names);

  // The name that Take() has found last.
  const std::string& name() const { return name_; }
  void Fail(absl::string_view message, absl::string_view code = "invalid_value");
  // That the field, if it is there, is another one than these.
  void Refuse(absl::string_view name, absl::string_view why);
  // Fails for names that nobody has asked for.
  void Finish();

 private:
  const nlohmann::json& object_;
  const std::string within_;
  std::optional<Problem>& problem_;
  std::set<std::string, std::less<>> known_;
  std::string name_;
};

}  // namespace tdock::serve
