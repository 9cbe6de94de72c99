// What a router that shuts down tells its nodes, and they find in the status of their streams.
// Thread safety: a constant.
#pragma once

namespace tandem::rpc {

inline constexpr char kRouterShutsDown[] = "the router is shutting down";

}  // namespace tandem::rpc
