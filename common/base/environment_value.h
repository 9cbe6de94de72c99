// A variable of an environment. Thread safety: a pure function.
#pragma once

#include <map>
#include <string>

namespace tandem {

// Empty when `environment` does not have it.
inline std::string EnvironmentValue(const std::map<std::string, std::string>& environment,
                                    const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

}  // namespace tandem
