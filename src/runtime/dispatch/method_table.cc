#include "runtime/dispatch/method_table.h"

#include <exception>
#include <optional>

#include "core/base/nearest.h"
#include "core/base/utf8.h"

namespace tdock::runtime {

absl::Status MethodTable::ServeAny(std::string name, Handler handler) {
  if (handlers_.contains(name)) {
    return absl::AlreadyExistsError(
        absl::StrCat("method '", name, "' is served already; serve it once, or for another role"));
  }
  handlers_[std::move(name)] = std::move(handler);
  return absl::OkStatus();
}

absl::StatusOr<Value> MethodTable::Call(absl::string_view name, std::vector<Value> arguments,
                                        absl::Time deadline) const {
  const auto entry = handlers_.find(name);
  if (entry == handlers_.end()) {
    std::vector<std::string> names;
    names.reserve(handlers_.size());
    for (const auto& [known, handler] : handlers_) names.push_back(known);
    const std::optional<std::string> nearest = NearestKey(name, names);
    return absl::NotFoundError(absl::StrCat("this worker does not serve method '", EscapeForMessage(name), "'",
                                            nearest ? absl::StrCat("; did you mean '", *nearest, "'?") : ""));
  }
  try {
    absl::StatusOr<Value> result = entry->second(std::move(arguments), deadline);
    if (result.ok()) TDOCK_RETURN_IF_ERROR(CheckDepth(*result, "the result"));
    return result;
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("it threw ", EscapeUnprintable(error.what())));
  }
}

}  // namespace tdock::runtime
