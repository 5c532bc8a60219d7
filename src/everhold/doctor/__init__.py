"""Check a home of everhold and report problems with remedies. `hermes.doctor` checks homes of hermes-agent."""
