// Reads the fields of a JSON object that a client has sent. Internal to this module.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "inference/protocol/problem.h"

namespace tdock::inference {

// The JSON object of a body, with names in their order. Absent if it is none, or has objects with so many names that
// the ordered ones would take long to make; then the problem is there.
std::optional<nlohmann::ordered_json> ParseBody(absl::string_view body, int max_depth, std::optional<Problem>& problem);

// A value with which a field that this server does not have is as if absent: OpenAI's default, or vLLM's.
struct DefaultField {
  absl::string_view name;
  absl::string_view value;  // JSON; null: the field is refused whatever it says
  absl::string_view why;    // another value is refused
};

// A field that is null counts as absent. The first problem is kept. Not thread-safe; the object must outlive it.
class Fields {
 public:
  // `within` is put before names in messages: "sampling_params.".
  Fields(const nlohmann::ordered_json& object, std::string within, std::optional<Problem>& problem)
      : object_(object), within_(std::move(within)), problem_(problem) {}

  // The value of the first of these names that is there, which Finish() then knows; null if there is none.
  const nlohmann::ordered_json* Take(std::initializer_list<absl::string_view> names);
  // Names that are known, and change nothing.
  void Ignore(std::initializer_list<absl::string_view> names);

  std::optional<double> Number(std::initializer_list<absl::string_view> names, double low, double high);
  std::optional<int64_t> Integer(std::initializer_list<absl::string_view> names, int64_t low, int64_t high);
  std::optional<bool> Bool(std::initializer_list<absl::string_view> names);
  std::optional<std::string> String(std::initializer_list<absl::string_view> names);

  // The name that Take() has found last, with what it is within.
  std::string path() const { return within_ + name_; }
  // Those of `object`, which is in the field that Take() has found last, at `where`: "[2].function".
  Fields In(const nlohmann::ordered_json& object, const std::string& where = "") const {
    return Fields(object, within_ + name_ + where + ".", problem_);
  }

  void Fail(absl::string_view message, absl::string_view code = "invalid_value");
  // Fails for the field of this name, which may not be there.
  void FailFor(absl::string_view name, absl::string_view message, absl::string_view code = "invalid_value");
  // Fails for `where` inside the field that Take() has found last: "[2].type".
  void FailAt(absl::string_view where, absl::string_view message, absl::string_view code = "invalid_value");
  // Fails if the field is there.
  void Refuse(absl::string_view name, absl::string_view why);
  // Fails for those of these fields that are there with another value. A name may be listed with several values.
  void RefuseOthers(std::span<const DefaultField> defaults);
  // Fails for names that nobody has asked for.
  void Finish();

 private:
  const nlohmann::ordered_json& object_;
  const std::string within_;
  std::optional<Problem>& problem_;
  std::set<std::string, std::less<>> known_;
  std::string name_;
};

}  // namespace tdock::inference
