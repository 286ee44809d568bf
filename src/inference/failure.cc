#include "inference/failure.h"

#include <c10/util/Exception.h>

#include "core/base/utf8.h"

namespace tdock::inference {

std::string WhatOf(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string what = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return EscapeUnprintable(what.substr(0, what.find('\n')));
}

}  // namespace tdock::inference
