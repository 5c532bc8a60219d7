// Skips the redraw of a component whose properties are the same.

import { Component, createElement, type ComponentChild, type FunctionComponent } from "preact";

export function memo<P extends object>(draw: (properties: P) => ComponentChild): FunctionComponent<P> {
  class Memo extends Component<P> {
    override shouldComponentUpdate(next: Readonly<P>): boolean {
      const before = this.props as Record<string, unknown>;
      return Object.entries(next).some(([name, value]) => before[name] !== value);
    }

    render(): ComponentChild {
      return draw(this.props as P);
    }
  }
  return (properties: P) => createElement(Memo as never, properties as never);
}
