#include "runtime/dispatch/method_table.h"

#include <exception>
#include <optional>

#include "core/base/nearest.h"

namespace tdock::runtime {

absl::Status MethodTable::ServeAny(std::string name, Handler handler) {
  const auto [entry, added] = handlers_.try_emplace(std::move(name), std::move(handler));
  if (added) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("method '", entry->first, "' is served already; serve it once, or for another role"));
}

absl::StatusOr<Value> MethodTable::Call(absl::string_view name, std::vector<Value> arguments,
                                        absl::Time deadline) const {
  const auto entry = handlers_.find(name);
  if (entry == handlers_.end()) {
    std::vector<std::string> names;
    for (const auto& [known, handler] : handlers_) names.push_back(known);
    const std::optional<std::string> nearest = NearestKey(name, names);
    return absl::NotFoundError(absl::StrCat("this worker does not serve method '", name, "'",
                                            nearest ? absl::StrCat("; did you mean '", *nearest, "'?") : ""));
  }
  try {
    absl::StatusOr<Value> result = entry->second(std::move(arguments), deadline);
    if (result.ok()) TDOCK_RETURN_IF_ERROR(CheckDepth(*result, "the result"));
    return result;
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("it threw ", error.what()));
  }
}

}  // namespace tdock::runtime
