#pragma once

namespace troupe::runtime {

/// From now on a signal that ends this process for a fault writes a backtrace to standard error first. Signals that
/// have a handler, of a sanitizer or another library, are left alone. A stack overflow gets no backtrace: the handler
/// runs on the same stack.
void report_crashes();

} // namespace troupe::runtime
