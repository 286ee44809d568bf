#include "base/json_text.h"

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace tdock {
namespace {

using Json = nlohmann::json;

constexpr size_t kNameShown = 80;

}  // namespace

absl::StatusOr<Json> ParseJsonObject(absl::string_view text, int max_depth) {
  bool too_deep = false;
  std::string duplicate;
  std::vector<absl::flat_hash_set<std::string>> names;  // of the objects that are open, by depth
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (too_deep) return false;
    const auto level = static_cast<size_t>(depth);
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      too_deep = depth >= max_depth;
      names.resize(level + 2);
      names[level + 1].clear();
    } else if (event == Json::parse_event_t::key && duplicate.empty()) {
      const std::string& name = value.get_ref<const std::string&>();
      if (!names[level].insert(name).second) duplicate = absl::StrCat("'", name.substr(0, kNameShown), "'");
    }
    return !too_deep;
  };
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::parse_error& e) {
    if (!too_deep) return absl::InvalidArgumentError(absl::StrCat("not JSON: a syntax error at byte ", e.byte));
  } catch (const Json::exception& e) {
    if (!too_deep) return absl::InvalidArgumentError(absl::StrCat("not JSON: ", e.what()));
  }
  if (too_deep) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", max_depth, " objects and lists inside one another"));
  }
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  if (!duplicate.empty()) return absl::InvalidArgumentError(absl::StrCat("has ", duplicate, " twice in one object"));
  return json;
}

}  // namespace tdock
