// What clients are told of exceptions.
#pragma once

#include <exception>
#include <string>

namespace tdock::inference {

// What it says, without the stack that libtorch adds, which is nobody else's business.
std::string WhatOf(const std::exception& error);

}  // namespace tdock::inference
