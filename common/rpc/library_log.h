// What gRPC and Protobuf would print by themselves goes to this process's log, at level debug:
// their callers get a Status, and report that.
// Thread safety: any thread; it takes effect once. Owner: none, it concerns the process.
#pragma once

namespace tandem::rpc {

void LogLibraryMessages();

}  // namespace tandem::rpc
