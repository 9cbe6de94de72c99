// Which requests a router without API keys refuses because a page of a foreign site may have sent
// them. Browsers let a page read only what its own site answers, and count as its site whatever its
// host name leads to. The owner of a name can let it lead to a router's address (DNS rebinding), so
// a router that asks for no key looks at the names by which it is called. An address is never such
// a name, and neither is a name that cannot be registered.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/front_end/http/http_message.h"

namespace tandem::router {

// Whether `address`, "host:port" of a listener, is reached from its own machine only.
bool IsLoopback(absl::string_view address);

// kPermissionDenied where `request` calls the router by a name that can be registered, and comes
// from a page of that name or, at a `loopback` listener, from any client: browsers do not say from
// which page they read. Programs reach other listeners by any name. Served are origins of
// `allowed_origins` ("*": all) and requests that use the host of one as the router's name.
absl::Status CheckHost(const HttpRequest& request, bool loopback,
                       const std::vector<std::string>& allowed_origins);

}  // namespace tandem::router
