// The boundary for exceptions of libtorch.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "core/base/utf8.h"

namespace tdock::trainer {

// Returns the result of `body`, an absl::Status or a StatusOr, or its exception as an error: ResourceExhausted if
// memory is exhausted, otherwise Internal.
template <class Body>
auto Guarded(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(EscapeUnprintable(e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    return absl::InternalError(EscapeUnprintable(e.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    return absl::InternalError(EscapeUnprintable(e.what()));
  }
}

}  // namespace tdock::trainer
