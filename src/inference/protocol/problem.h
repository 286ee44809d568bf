// Why a request is refused, in the form of OpenAI's error objects.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tdock::inference {

struct Problem {
  int status = 400;
  std::string message = {};
  std::string type = "invalid_request_error";
  std::string param = {};  // the field; empty: none
  std::string code = {};   // such as "context_length_exceeded"; empty: none
};

// {"error": {"message": …, "type": …, "param": …, "code": …}}
std::string BodyOf(const Problem& problem);

}  // namespace tdock::inference
