"""Fakes that are product, for tests of your own harness; both speak real HTTP.

``model_server`` answers as a scripted model; ``effect_service`` counts the effects of tools.
"""
