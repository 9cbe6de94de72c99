// What /proc says of another process. Thread safety: pure functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

namespace tandem::bench {

// CPU milliseconds (user and system) so far, by the threads' names; a number at a name's end is
// left out ("http-0" and "http-1" are "http"). Threads that have ended are missing.
std::map<std::string, double> CpuMsByThread(pid_t pid);
// Of the whole process, ended threads included.
double CpuMs(pid_t pid);
// Resident bytes.
int64_t ResidentBytes(pid_t pid);

}  // namespace tandem::bench
